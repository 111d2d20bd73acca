#include "worker/execute/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/base/thread.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

Work NamedWork() {
  TensorSpec spec;
  spec.name = "grad";
  return Work(std::move(spec), Clock::Real());
}

TEST(Work, SaysThatItStillRunsWhenAWaitEnds) {
  Work work = NamedWork();
  EXPECT_FALSE(work.done());
  EXPECT_THAT(work.Wait(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("tensor grad")));
}

TEST(Work, WakesWhoeverWaits) {
  Work work = NamedWork();
  std::thread thread = StartThread("waiter", [&work] {
    EXPECT_THAT(work.Wait(absl::InfiniteFuture()), IsOk());
    EXPECT_EQ(work.result().size, 4);
  });
  WorkResult result;
  result.size = 4;
  work.Complete(absl::OkStatus(), result);
  thread.join();
}

TEST(Work, CallsBackOnceWheneverAskedTo) {
  Work work = NamedWork();
  int before = 0, after = 0;
  work.OnComplete([&before](const absl::Status& status) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, "lost"));
    ++before;
  });
  EXPECT_EQ(before, 0);
  work.Complete(absl::AbortedError("lost"), {});
  EXPECT_EQ(before, 1);
  work.OnComplete([&after](const absl::Status& status) {
    EXPECT_TRUE(absl::IsAborted(status));
    ++after;
  });
  EXPECT_EQ(after, 1);
  EXPECT_EQ(before, 1);
}

TEST(Work, MayBeAskedFromItsOwnCallback) {
  Work work = NamedWork();
  bool done = false;
  work.OnComplete([&](const absl::Status&) { done = work.done(); });
  work.Complete(absl::OkStatus(), {});
  EXPECT_TRUE(done);
}

TEST(Work, LeavesItsCallbacksToWhoeverCompletesItAlone) {
  Work work = NamedWork();
  int calls = 0;
  work.OnComplete([&](const absl::Status&) { ++calls; });
  WorkResult result;
  result.size = 3;
  const Work::Callbacks callbacks = work.CompleteAlone(absl::OkStatus(), result);
  EXPECT_TRUE(work.done());
  EXPECT_EQ(work.result().size, 3);
  EXPECT_EQ(calls, 0);
  ASSERT_EQ(callbacks.size(), 1u);
  callbacks[0](absl::OkStatus());
  EXPECT_EQ(calls, 1);
  work.OnComplete([&](const absl::Status&) { ++calls; });  // it is complete already
  EXPECT_EQ(calls, 2);
}

TEST(Work, HasWhoeverWaitsDoIt) {
  Work work = NamedWork();
  absl::Time seen;
  work.DriveBy([&](const Work& waited, absl::Time deadline) {
    EXPECT_EQ(&waited, &work);
    seen = deadline;
    work.Complete(absl::OkStatus(), {});
  });
  EXPECT_TRUE(work.Wait(absl::InfiniteFuture()).ok());
  EXPECT_EQ(seen, absl::InfiniteFuture());
}

}  // namespace
}  // namespace coordd
