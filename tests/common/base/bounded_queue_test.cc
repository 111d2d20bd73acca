#include "common/base/bounded_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/thread.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Time kNever = absl::InfiniteFuture();
constexpr absl::Time kAtOnce = absl::InfinitePast();

class BoundedQueueTest : public ::testing::Test {
 protected:
  BoundedQueue<int> queue_{2, Clock::Real()};
};

TEST_F(BoundedQueueTest, GivesBackInOrder) {
  ASSERT_TRUE(queue_.TryPush(1));
  ASSERT_TRUE(queue_.TryPush(2));
  EXPECT_THAT(queue_.TakeAll(kNever), ElementsAre(1, 2));
  EXPECT_EQ(queue_.size(), 0u);
}

TEST_F(BoundedQueueTest, RefusesWhatIsBeyondItsCapacity) {
  ASSERT_TRUE(queue_.TryPush(1));
  ASSERT_TRUE(queue_.TryPush(2));
  EXPECT_FALSE(queue_.TryPush(3));
  EXPECT_FALSE(queue_.Push(3, kAtOnce));
  EXPECT_THAT(queue_.TakeAll(kNever), ElementsAre(1, 2));
  EXPECT_EQ(queue_.capacity(), 2u);
}

TEST_F(BoundedQueueTest, LeavesARefusedValueUntouched) {
  BoundedQueue<std::unique_ptr<int>> queue(1, Clock::Real());
  ASSERT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto value = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(value)));
  EXPECT_FALSE(queue.Push(std::move(value), kAtOnce));
  queue.Close();
  EXPECT_FALSE(queue.PushUnbounded(std::move(value)));
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(*value, 2);
}

TEST_F(BoundedQueueTest, TakeEndsEmptyAtItsDeadline) {
  EXPECT_THAT(queue_.TakeAll(Clock::Real().Now() + absl::Milliseconds(5)), IsEmpty());
}

TEST_F(BoundedQueueTest, TakeWaitsForAPush) {
  std::vector<int> taken;
  std::thread taker = StartThread("taker", [&] { taken = queue_.TakeAll(kNever); });
  ASSERT_TRUE(queue_.TryPush(7));
  taker.join();
  EXPECT_THAT(taken, ElementsAre(7));
}

TEST_F(BoundedQueueTest, PushWaitsForRoom) {
  ASSERT_TRUE(queue_.TryPush(1));
  ASSERT_TRUE(queue_.TryPush(2));
  bool pushed = false;
  std::thread pusher = StartThread("pusher", [&] { pushed = queue_.Push(3, kNever); });
  std::vector<int> all = queue_.TakeAll(kNever);
  pusher.join();
  for (int value : queue_.TakeAll(kAtOnce)) all.push_back(value);
  EXPECT_TRUE(pushed);
  EXPECT_THAT(all, ElementsAre(1, 2, 3));
}

TEST_F(BoundedQueueTest, PushUnboundedIgnoresTheCapacity) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(queue_.PushUnbounded(int{i}));
  EXPECT_THAT(queue_.TakeAll(kNever), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(BoundedQueueTest, KeepsWhatIsQueuedWhenClosedAndTakesNothingMore) {
  ASSERT_TRUE(queue_.TryPush(1));
  queue_.Close();
  EXPECT_FALSE(queue_.TryPush(2));
  EXPECT_FALSE(queue_.Push(2, kNever));
  EXPECT_FALSE(queue_.PushUnbounded(2));
  EXPECT_FALSE(queue_.Finished());
  EXPECT_THAT(queue_.TakeAll(kNever), ElementsAre(1));
  EXPECT_TRUE(queue_.Finished());
}

TEST_F(BoundedQueueTest, CloseEndsEveryWait) {
  ASSERT_TRUE(queue_.PushUnbounded(1));
  ASSERT_TRUE(queue_.PushUnbounded(2));
  BoundedQueue<int> empty(1, Clock::Real());
  bool pushed = true;
  std::vector<int> taken = {1};
  std::thread pusher = StartThread("pusher", [&] { pushed = queue_.Push(3, kNever); });
  std::thread taker = StartThread("taker", [&] { taken = empty.TakeAll(kNever); });
  queue_.Close();
  empty.Close();
  pusher.join();
  taker.join();
  EXPECT_FALSE(pushed);
  EXPECT_THAT(taken, IsEmpty());
}

TEST_F(BoundedQueueTest, LosesNothingAmongManyThreads) {
  constexpr int kProducers = 4;
  constexpr int kValues = 500;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.push_back(StartThread("producer", [this, p] {
      for (int i = 0; i < kValues; ++i) EXPECT_TRUE(queue_.Push(p * kValues + i, kNever));
    }));
  }
  std::vector<int> last(kProducers, -1);
  int received = 0;
  while (received < kProducers * kValues) {
    for (int value : queue_.TakeAll(kNever)) {
      EXPECT_LT(last[value / kValues], value % kValues) << "one producer's values stay in order";
      last[value / kValues] = value % kValues;
      ++received;
    }
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_THAT(queue_.TakeAll(kAtOnce), IsEmpty());
}

}  // namespace
}  // namespace coordd
