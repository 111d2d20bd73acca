// Messages of comms by themselves: ranks are threads, on one node, on one node each, or two on each
// of two nodes.
#include "worker/runtime/point_to_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/thread.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/message_rank.h"

namespace coordd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PointToPointTest : public ::testing::TestWithParam<Place> {
 protected:
  // All ranks go away when all are through.
  static void Run(int32_t size, const std::function<void(MessageRank&)>& body) {
    Machines machines(GetParam(), size);
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < size; ++r) {
      threads.push_back(StartThread(absl::StrCat("rank-", r), [&, r] {
        MessageRank rank(machines, r);
        machines.all.arrive_and_wait();
        body(rank);
        machines.all.arrive_and_wait();
      }));
    }
    for (std::thread& thread : threads) thread.join();
  }
};

INSTANTIATE_TEST_SUITE_P(Places, PointToPointTest,
                         ::testing::Values(Place::kOneNode, Place::kOneNodeEach, Place::kTwoOnEach),
                         [](const auto& info) {
                           return std::string(info.param == Place::kOneNode       ? "OneNode"
                                              : info.param == Place::kOneNodeEach ? "OneNodeEach"
                                                                                  : "TwoOnEach");
                         });

std::vector<int32_t> Numbers(size_t count, int32_t first) {
  std::vector<int32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// Few bytes, those that no longer are, more than a piece of any transport's.
const std::vector<size_t> kCounts = {0, 1, 52, 53, 16384, 1 << 20};

TEST_P(PointToPointTest, CarriesEachSizeToWhoIsThereBeforeAndAfterIt) {
  Run(2, [](MessageRank& rank) {
    const int32_t other = 1 - rank.rank();
    for (size_t count : kCounts) {
      // Each is first once.
      for (int32_t first : {0, 1}) {
        if (rank.rank() == first) {
          EXPECT_THAT(rank.SendAndWait(Numbers(count, first), other), IsOk());
          EXPECT_EQ(rank.Take(count, other), Numbers(count, 5));
        } else {
          EXPECT_EQ(rank.Take(count, other), Numbers(count, first));
          EXPECT_THAT(rank.SendAndWait(Numbers(count, 5), other), IsOk());
        }
      }
    }
  });
}

TEST_P(PointToPointTest, KeepsTheOrderOfEachTagWhateverTheSizes) {
  Run(2, [](MessageRank& rank) {
    constexpr int32_t kMessages = 300;
    const int32_t other = 1 - rank.rank();
    const auto count = [](int32_t i) { return static_cast<size_t>(i * 7 % 130); };
    std::vector<std::vector<int32_t>> sent;
    std::vector<std::shared_ptr<Work>> works;
    for (int32_t i = 0; i < kMessages; ++i) sent.push_back(Numbers(count(i), i));
    for (int32_t i = 0; i < kMessages; ++i)
      works.push_back(*rank.Send(sent[static_cast<size_t>(i)], other, i % 2));
    // The tag that is sent second is received first.
    for (int32_t tag : {1, 0})
      for (int32_t i = tag; i < kMessages; i += 2)
        ASSERT_EQ(rank.Take(count(i), other, tag), Numbers(count(i), i));
    for (const auto& work : works) EXPECT_THAT(MessageRank::Await(work), IsOk());
  });
}

TEST_P(PointToPointTest, GoesOnWithoutAnybodyWhoWaits) {
  Run(2, [](MessageRank& rank) {
    const int32_t other = 1 - rank.rank();
    for (size_t count : kCounts) {
      std::vector<int32_t> sent = Numbers(count, rank.rank()), received(count);
      const auto sends = rank.Send(sent, other), receives = rank.Receive(received, other);
      ASSERT_TRUE(sends.ok() && receives.ok());
      while (!(*sends)->done() || !(*receives)->done()) std::this_thread::yield();
      EXPECT_EQ(received, Numbers(count, other));
    }
  });
}

TEST_P(PointToPointTest, KeepsCommunicatorsApart) {
  Run(2, [](MessageRank& rank) {
    constexpr LaneId kOther{8};
    if (rank.rank() == 0) {
      std::vector<int32_t> one = {1}, two = {2};
      const auto first = rank.Send(one, 1, 0, kComm), second = rank.Send(two, 1, 0, kOther);
      EXPECT_THAT(MessageRank::Await(first), IsOk());
      EXPECT_THAT(MessageRank::Await(second), IsOk());
    } else {
      EXPECT_THAT(rank.Take(1, 0, 0, kOther), ElementsAre(2));
      EXPECT_THAT(rank.Take(1, 0, 0, kComm), ElementsAre(1));
    }
  });
}

TEST_P(PointToPointTest, ReceivesFromAnySourceAndSaysFromWhich) {
  Run(4, [](MessageRank& rank) {
    constexpr size_t kCount = 100;
    if (rank.rank() != 0) {
      for (int32_t turn = 0; turn < 3; ++turn)
        EXPECT_THAT(rank.SendAndWait(Numbers(kCount, 10 * rank.rank() + turn), 0, 4), IsOk());
      return;
    }
    std::vector<int32_t> turns(4, 0);
    for (int32_t i = 0; i < 9; ++i) {
      std::vector<int32_t> values(kCount);
      const auto work = rank.Receive(values, PointToPoint::kAnySource, 4);
      ASSERT_THAT(MessageRank::Await(work), IsOk());
      const auto source = static_cast<size_t>((*work)->result().received_splits.at(0));
      ASSERT_LT(source, 4u);
      EXPECT_EQ(values, Numbers(kCount, 10 * static_cast<int32_t>(source) + turns[source]++));
    }
    EXPECT_THAT(turns, ElementsAre(0, 3, 3, 3));
  });
}

TEST_P(PointToPointTest, SendersAndReceiversOfDifferentSizesBothHearIt) {
  Run(2, [](MessageRank& rank) {
    // Of few bytes the sender is through.
    for (size_t count : {size_t{4}, size_t{1000}}) {
      if (rank.rank() == 0) {
        std::vector<int32_t> smaller(count - 1);
        EXPECT_THAT(MessageRank::Await(rank.Receive(smaller, 1, 5)),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr(absl::StrCat("receive of tag 5: rank 1 has sent ", count,
                                                    " elements of int32, expected ", count - 1))));
      } else if (count <= 52) {
        EXPECT_THAT(rank.SendAndWait(Numbers(count, 0), 0, 5), IsOk());
      } else {
        EXPECT_THAT(
            rank.SendAndWait(Numbers(count, 0), 0, 5),
            StatusIs(absl::StatusCode::kInvalidArgument,
                     HasSubstr(absl::StrCat("send to rank 0, tag 5: ", count,
                                            " elements of int32, rank 0 expected ", count - 1))));
      }
    }
    // Which does no harm to others.
    if (rank.rank() == 0) {
      EXPECT_EQ(rank.Take(1000, 1), Numbers(1000, 3));
    } else {
      EXPECT_THAT(rank.SendAndWait(Numbers(1000, 3), 0), IsOk());
    }
  });
}

// --- messages that nobody waits for any longer

const auto kIsWithdrawn = StatusIs(absl::StatusCode::kCancelled, HasSubstr("withdrawn: "));

TEST_P(PointToPointTest, AWithdrawnReceiveTakesNothing) {
  Run(2, [](MessageRank& rank) {
    for (size_t count : kCounts) {
      if (rank.rank() == 0) {
        std::vector<int32_t> never(count, -1), anybody(count, -1);
        const auto from_one = rank.Receive(never, 1, 3);
        const auto from_any = rank.Receive(anybody, PointToPoint::kAnySource, 3);
        ASSERT_TRUE(from_one.ok() && from_any.ok());
        rank.messages().Withdraw(**from_one);
        rank.messages().Withdraw(**from_any);
        EXPECT_THAT(MessageRank::Await(from_one), kIsWithdrawn);
        EXPECT_THAT(MessageRank::Await(from_any), kIsWithdrawn);
        rank.messages().Withdraw(**from_one);  // ended
        EXPECT_THAT(rank.SendAndWait({1}, 1), IsOk());
        EXPECT_EQ(rank.Take(count, 1, 3), Numbers(count, 7));
        EXPECT_THAT(never, Each(-1));
        EXPECT_THAT(anybody, Each(-1));
      } else {
        EXPECT_THAT(rank.Take(1, 0), ElementsAre(1));
        EXPECT_THAT(rank.SendAndWait(Numbers(count, 7), 0, 3), IsOk());
      }
    }
  });
}

TEST_P(PointToPointTest, ASendIsNotWithdrawn) {
  Run(2, [](MessageRank& rank) {
    if (rank.rank() == 0) {
      std::vector<int32_t> sent = Numbers(1000, 3);
      const auto work = rank.Send(sent, 1);
      ASSERT_THAT(work, IsOk());
      rank.messages().Withdraw(**work);
      EXPECT_THAT(MessageRank::Await(work), IsOk());
    } else {
      EXPECT_EQ(rank.Take(1000, 0), Numbers(1000, 3));
    }
  });
}

// Withdrawn while the message comes: whoever is first, the receive takes it whole or not at all.
TEST_P(PointToPointTest, WithdrawalsMeetTheirMessages) {
  Run(2, [](MessageRank& rank) {
    for (int32_t turn = 0; turn < 200; ++turn) {
      const auto count = static_cast<size_t>(turn % 2 == 0 ? 10 : 1000);
      const std::vector<int32_t> sent = Numbers(count, turn);
      if (rank.rank() == 1) {
        EXPECT_THAT(rank.SendAndWait(sent, 0, turn), IsOk());
        continue;
      }
      std::vector<int32_t> values(count);
      const auto work = rank.Receive(values, 1, turn);
      ASSERT_THAT(work, IsOk());
      for (int32_t i = 0; i < turn % 7; ++i) std::this_thread::yield();
      rank.messages().Withdraw(**work);
      const absl::Status ended = MessageRank::Await(work);
      if (ended.ok()) {
        EXPECT_EQ(values, sent);
      } else {
        EXPECT_THAT(ended, kIsWithdrawn);
        EXPECT_EQ(rank.Take(count, 1, turn), sent);
      }
    }
  });
}

// --- who sends more than is received

TEST_P(PointToPointTest, WhoSendsAndWaitsIsNeverFurtherAheadThanAReceiverKeeps) {
  constexpr int32_t kMessages = 1000;
  std::atomic<int32_t> sent = 0;
  Run(2, [&](MessageRank& rank) {
    if (rank.rank() == 0) {
      for (int32_t i = 0; i < kMessages; ++i) {
        ASSERT_THAT(rank.SendAndWait({i}, 1, 1), IsOk());
        ++sent;
      }
      EXPECT_THAT(rank.SendAndWait({-7}, 1, 2), IsOk());
      return;
    }
    // It listens, for something else.
    std::vector<int32_t> last(1);
    const auto end = rank.Receive(last, 0, 2);
    while (sent < PointToPoint::kMaxEarly) std::this_thread::yield();
    for (int32_t i = 0; i < kMessages; ++i) {
      ASSERT_LE(sent, i + PointToPoint::kMaxEarly);
      ASSERT_THAT(rank.Take(1, 0, 1), ElementsAre(i));
    }
    EXPECT_THAT(MessageRank::Await(end), IsOk());
    EXPECT_THAT(last, ElementsAre(-7));
  });
}

TEST_P(PointToPointTest, BothMaySendFirstAsManyAsAReceiverKeeps) {
  Run(2, [](MessageRank& rank) {
    const int32_t other = 1 - rank.rank();
    // Twice: what has been received makes room.
    for (int32_t turn = 0; turn < 2; ++turn) {
      for (int32_t i = 0; i < PointToPoint::kMaxEarly - turn; ++i)
        ASSERT_THAT(rank.SendAndWait({i}, other), IsOk());
      for (int32_t i = 0; i < PointToPoint::kMaxEarly - turn; ++i)
        ASSERT_THAT(rank.Take(1, other), ElementsAre(i));
    }
  });
}

TEST_P(PointToPointTest, SendsThatNobodyWaitsForArriveInOrderHoweverManyTheyAre) {
  Run(2, [](MessageRank& rank) {
    constexpr int32_t kMessages = 2000;
    const int32_t other = 1 - rank.rank();
    std::vector<std::vector<int32_t>> sent;
    std::vector<std::shared_ptr<Work>> works;
    for (int32_t i = 0; i < kMessages; ++i) sent.push_back({i});
    for (auto& values : sent) works.push_back(*rank.Send(values, other));
    for (int32_t i = 0; i < kMessages; ++i) ASSERT_THAT(rank.Take(1, other), ElementsAre(i));
    for (const auto& work : works) EXPECT_THAT(MessageRank::Await(work), IsOk());
    EXPECT_EQ(rank.bytes_sent, kMessages * 4);
  });
}

// --- ends

TEST_P(PointToPointTest, WhatWaitsEndsWithTheGenerationAndNothingNewBegins) {
  Run(2, [](MessageRank& rank) {
    if (rank.rank() == 1) return;
    std::vector<int32_t> large(1000), received(3);
    const auto sends = rank.Send(large, 1), receives = rank.Receive(received, 1),
               any = rank.Receive(received, PointToPoint::kAnySource, 3);
    ASSERT_TRUE(sends.ok() && receives.ok() && any.ok());
    std::atomic<int> called = 0;
    (*receives)->OnComplete([&](const absl::Status& status) {
      EXPECT_TRUE(absl::IsAborted(status));
      ++called;
    });
    const absl::Status why = absl::AbortedError("rank 1 was lost");
    rank.End(why);
    rank.End(absl::AbortedError("another end"));
    for (const auto& work : {sends, receives, any}) EXPECT_EQ(MessageRank::Await(work), why);
    EXPECT_EQ(rank.Send(large, 1).status(), why);
    EXPECT_EQ(rank.Receive(received, 1).status(), why);
    while (called == 0) std::this_thread::yield();
  });
}

TEST_P(PointToPointTest, APeerThatEndsIsReportedAndCoorddSaysHowItEnds) {
  Machines machines(GetParam(), 2);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < 2; ++r) {
    threads.push_back(StartThread(absl::StrCat("rank-", r), [&, r] {
      MessageRank rank(machines, r);
      machines.all.arrive_and_wait();
      if (r == 1) {
        EXPECT_THAT(rank.SendAndWait({4}, 0), IsOk());
        machines.all.arrive_and_wait();
        return;  // it goes away
      }
      EXPECT_THAT(rank.Take(1, 1), ElementsAre(4));
      machines.all.arrive_and_wait();
      std::vector<int32_t> values(1000);
      const auto work = rank.Receive(values, 1);
      ASSERT_THAT(work, IsOk());
      EXPECT_FALSE(rank.AwaitFailure().ok());
      EXPECT_FALSE((*work)->done());
      const absl::Status why = absl::AbortedError("rank 1 was lost");
      rank.End(why);
      EXPECT_EQ(MessageRank::Await(work), why);
    }));
  }
  for (std::thread& thread : threads) thread.join();
}

// It could have sent what any rank could, so that it was listened to.
TEST_P(PointToPointTest, APeerThatEndsIsNoFailureForWhoHasNothingOpenWithIt) {
  Machines machines(GetParam(), 4);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < 4; ++r) {
    threads.push_back(StartThread(absl::StrCat("rank-", r), [&, r] {
      {
        MessageRank rank(machines, r);
        machines.all.arrive_and_wait();
        if (r == 2) {
          EXPECT_THAT(rank.SendAndWait({4}, 0), IsOk());
        }
        if (r == 0) {
          EXPECT_THAT(rank.Take(1, PointToPoint::kAnySource), ElementsAre(4));
        }
        machines.all.arrive_and_wait();
        if (r != 1) {
          machines.all.arrive_and_wait();  // it is gone
          // Long enough for every rank to see it go.
          EXPECT_FALSE(rank.FailsWithin(absl::Milliseconds(500)));
          machines.all.arrive_and_wait();
          return;
        }
      }
      machines.all.arrive_and_wait();
      machines.all.arrive_and_wait();
    }));
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(PointToPointTest, SaysWhatWaitsForWhom) {
  Run(2, [](MessageRank& rank) {
    if (rank.rank() == 1) return;
    std::vector<int32_t> large(1000), one(1);
    const auto sends = rank.Send(large, 1, 5), further = rank.Send(large, 1, 6),
               receives = rank.Receive(one, 1, 7),
               any = rank.Receive(one, PointToPoint::kAnySource, 8);
    std::vector<WaitingCall> waiting;
    rank.messages().AddWaiting(waiting);
    std::vector<std::string> calls;
    for (const WaitingCall& call : waiting) {
      EXPECT_EQ(call.comm, "torch");
      calls.push_back(absl::StrCat(call.call, call.missing == std::vector<int32_t>{1} ? " 1" : ""));
    }
    EXPECT_THAT(calls,
                ElementsAre("receive of tag 7 from rank 1 1", "receive of tag 8 from any member",
                            "send of tag 5 to rank 1 1"));
    rank.End(absl::AbortedError("the test is over"));
  });
}

TEST_P(PointToPointTest, ArgumentsThatCannotBeAreRefused) {
  Run(2, [](MessageRank& rank) {
    std::vector<int32_t> one(1);
    EXPECT_THAT(rank.Send(one, rank.rank()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sends to itself")));
    EXPECT_THAT(rank.Receive(one, 1 << 20),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("whose sum is below")));
  });
}

}  // namespace
}  // namespace coordd
