#include "server/job/kv_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/protocol/store.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;
using Request = decltype(StoreCall::request);

class KvStateTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(kv_.CheckConsistency(), IsOk()); }

  // The replies that the call leads to, its own first.
  std::vector<StoreReply> Call(Request request) {
    Effects effects;
    kv_.Call(StoreCall{CallId{++last_call_}, "train", "", std::move(request)}, {kStart, effects});
    return Replies(effects);
  }
  static std::vector<StoreReply> Replies(const Effects& effects) {
    std::vector<StoreReply> replies;
    for (const Outgoing& out : effects.outgoing) replies.push_back(std::get<StoreReply>(out));
    return replies;
  }
  absl::Status Status(Request request) { return Call(std::move(request)).at(0).status; }

  KvState kv_{"train", {.max_keys = 4, .max_bytes = 200 << 10, .max_waiting = 2}};
  int64_t last_call_ = 0;
};

TEST_F(KvStateTest, AGetOfASetKeyIsAnsweredAtOnce) {
  EXPECT_THAT(Status(StoreSet{"k", "v"}), IsOk());
  const auto replies = Call(StoreGet{"k"});
  ASSERT_THAT(replies, SizeIs(1));
  EXPECT_EQ(replies[0].value, "v");
}

TEST_F(KvStateTest, JobsOfOneOwnerShareWhatHeMayTake) {
  auto budget = std::make_shared<ByteBudget>(2000);
  kv_.Bind(budget);
  EXPECT_THAT(Status(StoreSet{"k", std::string(1000, 'v')}), IsOk());
  KvState other{"another", {}};
  other.Bind(budget);
  Effects effects;
  other.Call(StoreCall{CallId{77}, "another", "", StoreSet{"k", std::string(1000, 'v')}},
             {kStart, effects});
  const absl::Status refused = Replies(effects).at(0).status;
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("take 2000 bytes"));
  EXPECT_THAT(refused.message(), HasSubstr("--max-bytes-per-owner"));
  // What is overwritten, deleted or cleared is free again.
  EXPECT_THAT(Status(StoreSet{"k", std::string(900, 'v')}), IsOk());
  EXPECT_THAT(Status(StoreDelete{"k"}), IsOk());
  EXPECT_EQ(budget->used(), 0);
  other.Call(StoreCall{CallId{78}, "another", "", StoreSet{"k", std::string(1000, 'v')}},
             {kStart, effects});
  EXPECT_THAT(Replies(effects).back().status, IsOk());
  other.Clear(absl::OkStatus(), effects);
  EXPECT_EQ(budget->used(), 0);
}

TEST_F(KvStateTest, AGetWaitsForItsKey) {
  EXPECT_THAT(Call(StoreGet{"k"}), IsEmpty());
  EXPECT_THAT(Call(StoreSet{"other", "v"}), SizeIs(1));
  const auto replies = Call(StoreSet{"k", "v"});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[1].call, CallId{1});
  EXPECT_EQ(replies[1].value, "v");
}

TEST_F(KvStateTest, ALargeValueIsOneForAllWhoHaveWaited) {
  const std::string large(50'000, 'v');
  for (const char* key : {"large", "small"}) {
    EXPECT_THAT(Call(StoreGet{key}), IsEmpty());
    EXPECT_THAT(Call(StoreGet{key}), IsEmpty());
    const bool is_large = key == std::string("large");
    const std::vector<StoreReply> replies = Call(StoreSet{key, is_large ? large : "v"});
    ASSERT_EQ(replies.size(), 3u);
    EXPECT_EQ(replies[1].shared, replies[2].shared);
    EXPECT_EQ(replies[1].shared != nullptr ? *replies[1].shared : replies[1].value,
              is_large ? large : "v");
    EXPECT_EQ(replies[1].shared != nullptr, is_large);
  }
}

TEST_F(KvStateTest, ComparingAndAppendingWakeWhoWaits) {
  EXPECT_THAT(Call(StoreGet{"a"}), IsEmpty());
  EXPECT_THAT(Call(StoreGet{"b"}), IsEmpty());
  EXPECT_THAT(Call(StoreCompareSet{"a", "x", "y"}), SizeIs(1));  // it is still missing
  auto replies = Call(StoreCompareSet{"a", std::nullopt, "y"});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_THAT(replies[0].found, ElementsAre("y"));
  EXPECT_EQ(replies[1].value, "y");
  replies = Call(StoreAppend{"b", "zz"});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[0].number, 2);
  EXPECT_EQ(replies[1].value, "zz");
}

TEST_F(KvStateTest, EveryCallKeepsTheBounds) {
  for (const char* key : {"a", "b", "c", "d"}) EXPECT_THAT(Status(StoreSet{key, ""}), IsOk());
  EXPECT_EQ(Status(StoreCompareSet{"e", std::nullopt, "v"}).code(), Code::kResourceExhausted);
  EXPECT_EQ(Status(StoreAppend{"e", "v"}).code(), Code::kResourceExhausted);
  const std::string large(Store::kMaxValueBytes, 'v');
  EXPECT_EQ(Status(StoreCompareSet{"a", "", large + "v"}).code(), Code::kInvalidArgument);
  for (const char* key : {"a", "b", "c"}) EXPECT_THAT(Status(StoreAppend{key, large}), IsOk());
  EXPECT_EQ(Status(StoreAppend{"a", "v"}).code(), Code::kInvalidArgument);
  EXPECT_EQ(Status(StoreAppend{"d", large}).code(), Code::kResourceExhausted);
  EXPECT_THAT(Status(StoreDelete{"c"}), IsOk());
  EXPECT_THAT(Status(StoreAppend{"d", large}), IsOk());
  EXPECT_EQ(Status(StoreLook{std::vector<std::string>(Store::kMaxLookKeys + 1, "a")}).code(),
            Code::kInvalidArgument);
}

TEST_F(KvStateTest, KeysOfAGenerationThatIsOverAreRefusedToEveryCall) {
  EXPECT_EQ(Status(StoreCompareSet{"gen/1/k", std::nullopt, "v"}).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(Status(StoreAppend{"gen/1/k", "v"}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Status(StoreDelete{"gen/1/k"}).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Status(StoreLook{{"gen/1/k"}}).code(), Code::kFailedPrecondition);
}

TEST_F(KvStateTest, AnEmptyValueIsAValue) {
  EXPECT_THAT(Status(StoreSet{"k", ""}), IsOk());
  EXPECT_THAT(Status(StoreGet{"k"}), IsOk());
}

TEST_F(KvStateTest, AddWakesWaitersAndSums) {
  Call(StoreGet{"n"});
  const auto replies = Call(StoreAdd{"n", 5});
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies[0].number, 5);
  EXPECT_EQ(replies[1].value, "5");
  EXPECT_EQ(Call(StoreAdd{"n", -7})[0].number, -2);
  Call(StoreSet{"n", "x"});
  EXPECT_THAT(Status(StoreAdd{"n", 1}), StatusIs(Code::kInvalidArgument, HasSubstr("number")));
  Call(StoreSet{"n", absl::StrCat(std::numeric_limits<int64_t>::max())});
  EXPECT_THAT(Status(StoreAdd{"n", 1}), StatusIs(Code::kInvalidArgument, HasSubstr("64 bits")));
}

TEST_F(KvStateTest, ACancelledGetIsNotAnswered) {
  Call(StoreGet{"k"});
  kv_.Cancel(CallId{1});
  kv_.Cancel(CallId{99});
  EXPECT_THAT(Call(StoreSet{"k", "v"}), SizeIs(1));
}

TEST_F(KvStateTest, KeysOfAGenerationEndWithIt) {
  EXPECT_THAT(Status(StoreSet{"gen/1/id", "x"}),
              StatusIs(Code::kFailedPrecondition, HasSubstr("does not exist yet")));
  kv_.Open(Generation{1});
  Call(StoreSet{"gen/1/id", "x"});
  Call(StoreSet{"job", "stays"});
  EXPECT_THAT(Call(StoreGet{"gen/1/other"}), IsEmpty());
  EXPECT_THAT(Call(StoreGet{"later"}), IsEmpty());
  Effects effects;
  kv_.Close(Generation{1}, effects);
  ASSERT_THAT(Replies(effects), SizeIs(1));
  EXPECT_THAT(Replies(effects)[0].status,
              StatusIs(Code::kFailedPrecondition, HasSubstr("gen/1/other: generation 1 of job "
                                                            "train is over")));
  EXPECT_EQ(kv_.keys(), 1);
  kv_.Open(Generation{2});
  EXPECT_THAT(Status(StoreGet{"gen/1/id"}),
              StatusIs(Code::kFailedPrecondition, HasSubstr("the current one is 2")));
  EXPECT_THAT(Call(StoreGet{"gen/2/id"}), SizeIs(0));
}

TEST_F(KvStateTest, RefusesKeysThatOnlyLookLikeAGenerations) {
  for (const char* key : {"gen/", "gen/1", "gen/x/id", "gen/01/id", "gen/-1", "gen//id"}) {
    EXPECT_EQ(Status(StoreSet{key, "x"}).code(), Code::kInvalidArgument) << key;
  }
  EXPECT_THAT(Status(StoreSet{"gentle", "x"}), IsOk());
}

TEST_F(KvStateTest, BoundsKeysValuesAndWaiters) {
  EXPECT_THAT(Status(StoreSet{"", "v"}), StatusIs(Code::kInvalidArgument, HasSubstr("1 to 256")));
  EXPECT_THAT(Status(StoreSet{std::string(257, 'k'), "v"}),
              StatusIs(Code::kInvalidArgument, HasSubstr("257")));
  EXPECT_THAT(Status(StoreSet{"k", std::string(Store::kMaxValueBytes + 1, 'v')}),
              StatusIs(Code::kInvalidArgument, HasSubstr("65536")));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Status(StoreSet{absl::StrCat("k", i), std::string(64 << 10, 'v')}), IsOk());
  }
  EXPECT_THAT(Status(StoreSet{"k3", std::string(64 << 10, 'v')}),
              StatusIs(Code::kResourceExhausted, HasSubstr("bytes")));
  EXPECT_THAT(Status(StoreSet{"k2", "small"}), IsOk());
  EXPECT_THAT(Status(StoreSet{"k3", "v"}), IsOk());
  EXPECT_THAT(Status(StoreSet{"k4", "v"}), StatusIs(Code::kResourceExhausted, HasSubstr("4 keys")));
  EXPECT_THAT(Status(StoreAdd{"k4", 1}), StatusIs(Code::kResourceExhausted, HasSubstr("4 keys")));
  Call(StoreGet{"a"});
  Call(StoreGet{"b"});
  EXPECT_THAT(Status(StoreGet{"c"}), StatusIs(Code::kResourceExhausted, HasSubstr("2 calls")));
}

TEST_F(KvStateTest, SaysOneKeyAndOneCallAsSuch) {
  KvState kv("train", {.max_keys = 1, .max_waiting = 1});
  const auto said = [&](Request request) {
    Effects effects;
    kv.Call(StoreCall{CallId{++last_call_}, "train", "", std::move(request)}, {kStart, effects});
    return effects.outgoing.empty() ? "" : std::string(Replies(effects)[0].status.message());
  };
  EXPECT_EQ(said(StoreSet{"a", "v"}), "");
  EXPECT_THAT(said(StoreSet{"b", "v"}), HasSubstr("job train has 1 key already"));
  EXPECT_EQ(said(StoreGet{"b"}), "");
  EXPECT_THAT(said(StoreGet{"c"}), HasSubstr("1 call of job train waits for keys already"));
}

TEST_F(KvStateTest, DeletesByPrefix) {
  for (const char* key : {"a", "ab", "abc", "b"}) Call(StoreSet{key, "v"});
  EXPECT_EQ(Call(StoreDeletePrefix{"ab"})[0].number, 2);
  EXPECT_THAT(Status(StoreDeletePrefix{""}), StatusIs(Code::kInvalidArgument, HasSubstr("key")));
  EXPECT_EQ(kv_.keys(), 2);
}

TEST_F(KvStateTest, AnswersEverybodyWhenTheJobIsOver) {
  Call(StoreSet{"k", "v"});
  Call(StoreGet{"never"});
  Effects effects;
  kv_.Clear(absl::NotFoundError("over"), effects);
  ASSERT_THAT(Replies(effects), SizeIs(1));
  EXPECT_THAT(Replies(effects)[0].status, StatusIs(Code::kNotFound, HasSubstr("over")));
  EXPECT_EQ(kv_.keys(), 0);
}

TEST_F(KvStateTest, EachWriteHasAVersionThatGrows) {
  KvState kv("train", {}, Epoch{7});
  int64_t last_call = 0;
  const auto version = [&](Request request) {
    Effects effects;
    kv.Call(StoreCall{CallId{++last_call}, "train", "", std::move(request)}, {kStart, effects});
    return Replies(effects).at(0).version;
  };
  const auto at = [](int64_t number) { return StoreVersion{Epoch{7}, number}; };
  EXPECT_EQ(version(StoreSet{"k", "v"}), at(1));
  EXPECT_EQ(version(StoreAdd{"n", 1}), at(2));
  EXPECT_EQ(version(StoreAppend{"k", "w"}), at(3));
  EXPECT_EQ(version(StoreCompareSet{"k", "vw", "x"}), at(4));
  EXPECT_EQ(version(StoreCompareSet{"k", "another", "y"}), std::nullopt);
  EXPECT_EQ(version(StoreCompareSet{"k", "vw", "x"}), at(5)) << "it is the desired one";
  EXPECT_EQ(version(StoreDelete{"k"}), at(6));
  EXPECT_EQ(version(StoreDelete{"k"}), at(7));
  EXPECT_EQ(version(StoreDeletePrefix{"n"}), at(8));
  EXPECT_EQ(version(StoreAdd{"", 1}), std::nullopt);
  EXPECT_EQ(version(StoreLook{{"k"}, true}), at(8)) << "what it shows";
  EXPECT_EQ(version(StoreCount{""}), std::nullopt);
}

TEST_F(KvStateTest, AnAppendMayAskForTheWhole) {
  EXPECT_EQ(Call(StoreAppend{"k", "a", /*wants_value=*/true})[0].value, "a");
  EXPECT_EQ(Call(StoreAppend{"k", "b", /*wants_value=*/true})[0].value, "ab");
  EXPECT_EQ(Call(StoreAppend{"k", "c"})[0].value, "");
}

TEST_F(KvStateTest, CountsOnAfterItHasCountedOnce) {
  const auto count = [this](const std::string& prefix) {
    return Call(StoreCount{prefix})[0].number;
  };
  kv_.Open(Generation{1});
  Call(StoreSet{"a/1", "v"});
  EXPECT_EQ(count("a/"), 1);
  EXPECT_EQ(count(""), 1);
  Call(StoreSet{"a/2", "v"});
  Call(StoreSet{"a/2", "again"});
  Call(StoreSet{"gen/1/x", "v"});
  Call(StoreAdd{"b", 1});
  EXPECT_EQ(count("a/"), 2);
  EXPECT_EQ(count(""), 3);
  Call(StoreDelete{"a/1"});
  EXPECT_EQ(count("a/"), 1);
  EXPECT_EQ(count("gen/"), 0);
  Effects effects;
  kv_.Close(Generation{1}, effects);
  EXPECT_EQ(count(""), 2);
  Call(StoreDeletePrefix{"a"});
  EXPECT_EQ(count(""), 1);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(count(absl::StrCat("b", i)), 0);
  EXPECT_EQ(count("a/"), 0);
  EXPECT_EQ(count("b"), 1);
}

TEST(HeldCallsOfAStore, AreBounded) {
  KvState kv("train", {.held = {.calls = 2, .bytes = 10}}, Epoch{2});
  kv.Await();
  const auto call = [&kv](int64_t id, Request request) {
    Effects effects;
    kv.Call(StoreCall{CallId{id}, "train", "", std::move(request)}, {kStart, effects});
    return effects.outgoing.empty() ? absl::OkStatus()
                                    : std::get<StoreReply>(effects.outgoing[0]).status;
  };
  EXPECT_THAT(call(1, StoreSet{"k", "12345678"}), IsOk());
  EXPECT_THAT(call(2, StoreSet{"k", "x"}),
              StatusIs(Code::kResourceExhausted, HasSubstr("1 call of 9 bytes waits already")));
  EXPECT_THAT(call(3, StoreGet{"k"}), IsOk());
  EXPECT_THAT(call(4, StoreCount{""}), StatusIs(Code::kResourceExhausted, HasSubstr("train")));
  EXPECT_EQ(kv.waiting(), 2);
  kv.Cancel(CallId{1});
  EXPECT_THAT(call(5, StoreSet{"j", "12345678"}), IsOk());
  EXPECT_THAT(kv.CheckConsistency(), IsOk());
  Effects effects;
  kv.Restore({{"k", "restored"}, {"gen/3/k", "of no generation"}, {"", "no key"}},
             {kStart, effects});
  EXPECT_THAT(effects.outgoing, SizeIs(0)) << "more may come";
  kv.GoOn({kStart, effects});
  ASSERT_THAT(effects.outgoing, SizeIs(2));
  EXPECT_EQ(std::get<StoreReply>(effects.outgoing[0]).value, "restored");
  EXPECT_EQ(kv.keys(), 2);
  EXPECT_EQ(kv.waiting(), 0);
  kv.Restore({{"late", "x"}}, {kStart, effects});
  EXPECT_EQ(kv.keys(), 2) << "it awaits nothing";
  EXPECT_THAT(kv.CheckConsistency(), IsOk());
}

TEST(HeldCallsOfAStore, AreCarriedOutOverTurnsInTheirOrder) {
  KvState kv("train", {}, Epoch{2});
  kv.Await();
  const std::vector<std::string> keys(1000, "k");
  Effects effects;
  const Turn turn{kStart, effects};
  for (int64_t id = 1; id <= 20; ++id)
    kv.Call(StoreCall{CallId{id}, "train", "", StoreLook{keys, true}}, turn);
  kv.GoOn(turn);
  EXPECT_TRUE(kv.awaits());
  EXPECT_LT(effects.outgoing.size(), 10);
  kv.Call(StoreCall{CallId{21}, "train", "", StoreSet{"k", "x"}}, turn);
  while (kv.awaits()) kv.GoOn(turn);
  ASSERT_THAT(effects.outgoing, SizeIs(21));
  for (int64_t id = 1; id <= 21; ++id)
    EXPECT_EQ(std::get<StoreReply>(effects.outgoing[id - 1]).call, CallId{id});
}

// Beside a std::map: same answers, nobody waits for a key that is set.
TEST(KvStateModel, AgreesWithAMap) {
  Random random(3);
  KvState kv("train", {});
  std::map<std::string, std::string> naive;
  std::map<CallId, std::string> waiting;
  int64_t generation = 1;
  kv.Open(Generation{1});
  for (int64_t call = 1; call <= 5000; ++call) {
    const std::string scope =
        random.Below(2) == 0 ? "" : absl::StrCat("gen/", generation - (random.Below(10) == 0), "/");
    const std::string key = absl::StrCat(scope, "k", random.Below(6));
    const bool usable = !absl::StartsWith(key, "gen/") ||
                        absl::StartsWith(key, absl::StrCat("gen/", generation, "/"));
    Effects effects;
    const uint64_t what = random.Below(20);
    if (what < 8) {
      kv.Call({CallId{call}, "", "", StoreSet{key, absl::StrCat(call)}}, {kStart, effects});
      if (usable) naive[key] = absl::StrCat(call);
    } else if (what < 16) {
      kv.Call({CallId{call}, "", "", StoreGet{key}}, {kStart, effects});
      if (usable) waiting[CallId{call}] = key;
    } else if (what < 18) {
      kv.Call({CallId{call}, "", "", StoreDeletePrefix{key}}, {kStart, effects});
      if (usable) std::erase_if(naive, [&](auto& kv) { return absl::StartsWith(kv.first, key); });
    } else if (what < 19 && !waiting.empty()) {
      kv.Cancel(waiting.begin()->first);
      waiting.erase(waiting.begin());
    } else if (what == 19) {
      kv.Close(Generation{generation}, effects);
      kv.Open(Generation{++generation});
      std::erase_if(naive, [](auto& kv) { return absl::StartsWith(kv.first, "gen/"); });
    }
    for (const Outgoing& out : effects.outgoing) {
      const auto& reply = std::get<StoreReply>(out);
      const auto it = waiting.find(reply.call);
      if (it == waiting.end()) {
        ASSERT_TRUE(reply.call == CallId{call});
        ASSERT_EQ(reply.status.ok(), usable);
        continue;
      }
      if (reply.status.ok()) {
        ASSERT_EQ(reply.value, naive.at(it->second));
      } else {
        ASSERT_EQ(reply.status.code(), Code::kFailedPrecondition);
        ASSERT_TRUE(absl::StartsWith(it->second, "gen/"));
      }
      waiting.erase(it);
    }
    for (const auto& [id, key_waited_for] : waiting) ASSERT_FALSE(naive.contains(key_waited_for));
    ASSERT_EQ(kv.keys(), static_cast<int64_t>(naive.size()));
    ASSERT_EQ(kv.waiting(), static_cast<int64_t>(waiting.size()));
    ASSERT_THAT(kv.CheckConsistency(), IsOk());
  }
}

// Whether many of them or few are the generation's.
TEST_F(KvStateTest, WhatEndsIsFreedInPartsAndCountsUntilThen) {
  for (const int of_generation : {10, 90}) {
    auto budget = std::make_shared<ByteBudget>(1 << 20);
    KvState kv("train", {});
    kv.Bind(budget);
    kv.Open(Generation{1});
    Effects effects;
    const auto set = [&](const std::string& key) {
      kv.Call(StoreCall{CallId{++last_call_}, "train", "", StoreSet{key, "v"}}, {kStart, effects});
    };
    for (int i = 0; i < of_generation; ++i) set(absl::StrCat("gen/1/", 100 + i));
    const int64_t gone = budget->used();
    for (int i = of_generation; i < 100; ++i) set(absl::StrCat(i % 2 == 0 ? "a" : "z", i));
    const int64_t all = budget->used();
    const std::unique_ptr<Remains> over = kv.Close(Generation{1}, effects);
    EXPECT_EQ(budget->used(), all);
    EXPECT_EQ(kv.keys(), 100 - of_generation);
    EXPECT_THAT(kv.CheckConsistency(), IsOk());
    EXPECT_EQ(over->Free(4), 4);
    EXPECT_EQ(budget->used(), all - gone * 4 / of_generation);
    EXPECT_EQ(over->Free(100), of_generation - 4);
    EXPECT_EQ(budget->used(), all - gone);
    std::unique_ptr<Remains> rest = kv.Clear(absl::OkStatus(), effects);
    EXPECT_EQ(kv.keys(), 0);
    EXPECT_THAT(kv.CheckConsistency(), IsOk());
    EXPECT_EQ(rest->Free(1), 1);
    EXPECT_GT(budget->used(), 0);
    rest.reset();
    EXPECT_EQ(budget->used(), 0);
  }
}

// Whether few are deleted or nearly all.
TEST_F(KvStateTest, ManyThatAreDeletedTogetherAreFreedInPartsAndCountUntilThen) {
  for (const int deleted : {300, 700}) {
    auto budget = std::make_shared<ByteBudget>(1 << 20);
    KvState kv("train", {});
    kv.Bind(budget);
    Graveyard graveyard;
    Effects effects;
    const auto call = [&](Request request) {
      kv.Call(StoreCall{CallId{++last_call_}, "train", "", std::move(request)},
              {kStart, effects, &graveyard});
      return std::get<StoreReply>(effects.outgoing.back()).number;
    };
    for (int i = 0; i < 1000; ++i)
      call(StoreSet{absl::StrCat(i < deleted ? "gone/" : "kept/", 1000 + i), "v"});
    const int64_t all = budget->used();
    EXPECT_EQ(call(StoreCount{"gone/"}), deleted);
    EXPECT_EQ(call(StoreDeletePrefix{"gone/"}), deleted);
    EXPECT_EQ(kv.keys(), 1000 - deleted);
    EXPECT_EQ(call(StoreCount{"gone/"}), 0);
    EXPECT_EQ(call(StoreCount{""}), 1000 - deleted);
    EXPECT_THAT(kv.CheckConsistency(), IsOk());
    EXPECT_EQ(budget->used(), all) << "the turn of the call has freed some";
    EXPECT_EQ(graveyard.Free(100), 100);
    EXPECT_EQ(budget->used(), all / 1000 * 900);
    EXPECT_EQ(graveyard.Free(1000), deleted - 100);
    EXPECT_EQ(budget->used(), all / 1000 * (1000 - deleted));
    // Few are free again for the next call.
    EXPECT_EQ(call(StoreDeletePrefix{"kept/199"}), 10);
    EXPECT_TRUE(graveyard.empty());
    EXPECT_EQ(budget->used(), all / 1000 * (990 - deleted));
  }
}

}  // namespace
}  // namespace coordd
