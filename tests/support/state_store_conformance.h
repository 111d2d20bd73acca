// What every StateStore must do. A test program includes this once and instantiates StateStoreTest
// with a place for each implementation.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/model/state_store.h"
#include "tests/support/status_matchers.h"

namespace coordd {

// Where state lives: makes any number of stores that stand on the same one. Empty at first. Null:
// there is no such place here, and `why` says so (the tests are skipped).
struct StorePlace {
  std::function<std::unique_ptr<StateStore>(const StateStoreOptions& options)> store;
  std::string why;
};
using StorePlaceFactory = std::function<std::shared_ptr<StorePlace>()>;

class StateStoreTest : public ::testing::TestWithParam<StorePlaceFactory> {
 protected:
  void SetUp() override {
    place_ = GetParam()();
    if (place_->store == nullptr) GTEST_SKIP() << place_->why;
  }

  static StateStoreOptions Options(const std::string& owner = "pid 1 on host here") {
    return {.new_cluster_id = "c0ffee", .expected_cluster_id = "", .adopt = false, .owner = owner};
  }
  std::unique_ptr<StateStore> Make(const StateStoreOptions& options = Options()) {
    return place_->store(options);
  }
  static std::function<void(absl::Status)> NeverLost() {
    return [](const absl::Status& status) { ADD_FAILURE() << "lost: " << status; };
  }
  // Opens, looks, gives it up.
  StoredState Look() {
    const auto store = Make();
    const auto state = store->Open(NeverLost());
    EXPECT_THAT(state, IsOk());
    return state.ok() ? *state : StoredState();
  }

  std::shared_ptr<StorePlace> place_;
};

TEST_P(StateStoreTest, StartsEmptyWithTheFirstEpochAndAnId) {
  const StoredState state = Look();
  EXPECT_EQ(state.epoch, Epoch{1});
  EXPECT_EQ(state.cluster_id, "c0ffee");
  EXPECT_TRUE(state.records.empty());
  EXPECT_FALSE(state.adopted);
}

TEST_P(StateStoreTest, EachOpeningHasTheNextEpochAndTheSameCluster) {
  for (int64_t epoch = 1; epoch <= 4; ++epoch) {
    StateStoreOptions options = Options();
    options.new_cluster_id = absl::StrCat("made", epoch);
    const auto store = Make(options);
    const auto state = store->Open(NeverLost());
    ASSERT_THAT(state, IsOk());
    EXPECT_EQ(state->epoch, Epoch{epoch});
    EXPECT_EQ(state->cluster_id, "made1");
  }
}

TEST_P(StateStoreTest, GivesBackWhatWasCommitted) {
  const std::string binary("\0\xff\n binary", 10);
  {
    const auto store = Make();
    ASSERT_THAT(store->Open(NeverLost()), IsOk());
    ASSERT_THAT(store->Commit({{"job/a", "one"}, {"job/b", binary}, {"job/c", ""}}), IsOk());
  }
  EXPECT_THAT(Look().records, ::testing::ElementsAre(::testing::Pair("job/a", "one"),
                                                     ::testing::Pair("job/b", binary),
                                                     ::testing::Pair("job/c", "")));
}

TEST_P(StateStoreTest, OverwritesAndDeletes) {
  {
    const auto store = Make();
    ASSERT_THAT(store->Open(NeverLost()), IsOk());
    ASSERT_THAT(store->Commit({{"job/a", "one"}, {"job/b", "two"}}), IsOk());
    ASSERT_THAT(
        store->Commit({{"job/a", "three"}, {"job/b", std::nullopt}, {"job/z", std::nullopt}}),
        IsOk());
  }
  EXPECT_THAT(Look().records, ::testing::ElementsAre(::testing::Pair("job/a", "three")));
}

TEST_P(StateStoreTest, AnEmptyCommitIsNone) {
  const auto store = Make();
  ASSERT_THAT(store->Open(NeverLost()), IsOk());
  EXPECT_THAT(store->Commit({}), IsOk());
}

TEST_P(StateStoreTest, OneAtATimeHasItAndTheOtherIsToldWho) {
  auto first = Make(Options("pid 4711 on host a1"));
  ASSERT_THAT(first->Open(NeverLost()), IsOk());
  EXPECT_THAT(Make()->Open(NeverLost()), StatusIs(absl::StatusCode::kAlreadyExists,
                                                  ::testing::HasSubstr("pid 4711 on host a1")));
  ASSERT_THAT(first->Commit({{"job/a", "still mine"}}), IsOk());
  first.reset();
  EXPECT_THAT(Look().records, ::testing::ElementsAre(::testing::Pair("job/a", "still mine")));
}

TEST_P(StateStoreTest, StateOfAnotherClusterIsRefused) {
  Look();
  StateStoreOptions options = Options();
  options.expected_cluster_id = "decade";
  EXPECT_THAT(
      Make(options)->Open(NeverLost()),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               ::testing::AllOf(::testing::HasSubstr("c0ffee"), ::testing::HasSubstr("decade"))));
  options.expected_cluster_id = "c0ffee";
  EXPECT_THAT(Make(options)->Open(NeverLost()), IsOk());
}

TEST_P(StateStoreTest, TakesTheMostThatOneCommitMayHave) {
  std::vector<StateWrite> writes;
  for (size_t i = 0; i < StateStore::kMaxWrites; ++i) {
    writes.push_back({absl::StrCat("job/", i), std::string(5000, 'v')});
  }
  {
    const auto store = Make();
    ASSERT_THAT(store->Open(NeverLost()), IsOk());
    ASSERT_THAT(store->Commit(writes), IsOk());
    ASSERT_THAT(store->Commit({{"job/large", std::string(StateStore::kMaxCommitBytes - 100, 'v')}}),
                IsOk());
    writes.push_back({"one too many", ""});
    EXPECT_THAT(store->Commit(writes), StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
    EXPECT_THAT(store->Commit({{"", "no key"}}),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
    EXPECT_THAT(store->Commit({{std::string(StateStore::kMaxKeyBytes + 1, 'k'), ""}}),
                StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
    ASSERT_THAT(store->Commit({{"job/0", "goes on after a refusal"}}), IsOk());
  }
  const StoredState state = Look();
  EXPECT_EQ(state.records.size(), StateStore::kMaxWrites + 1);
  EXPECT_EQ(state.records.at("job/0"), "goes on after a refusal");
}

}  // namespace coordd
