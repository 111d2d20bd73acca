// Workers against the real coordd, all in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/thread.h"
#include "server/service/coord_server.h"
#include "tests/support/hang_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"
#include "tests/worker/support/faulty_backend.h"
#include "worker/api/comm.h"
#include "worker/coordinator/grpc_coordinator_link.h"
#include "worker/coordinator/grpc_store.h"
#include "worker/execute/fusion_layout.h"
#include "worker/host/checking_backend.h"
#include "worker/program/selftest.h"
#include "worker/runtime/backend_factory.h"
#include "worker/runtime/worker_impl.h"
#include "worker/runtime/worker_metrics.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class WorkerServerTest : public ::testing::Test {
 protected:
  void StartServer(const std::function<void(CoordServerOptions&)>& change = [](auto&) {}) {
    CoordServerOptions options;
    options.listen = {"127.0.0.1", 0};
    options.http.reset();
    change(options);
    auto server = CoordServer::Start(options, Clock::Real(), registry_);
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
  }

  WorkerOptions Options(int32_t rank, int32_t size) const {
    WorkerOptions options;
    options.coordinator = server_->listen_address();
    options.job = "test";
    options.min_workers = options.max_workers = size;
    options.launcher_rank = rank;
    options.worker_id = absl::StrCat("worker-", rank);
    options.join_timeout = options.connect_timeout = kHangLimit;
    options.collective_timeout = kHangLimit;
    options.fusion_buffer_bytes = 1 << 20;
    options.check_results = check_results_;
    return options;
  }

  absl::StatusOr<std::unique_ptr<CollectiveBackend>> Backend(WorkerOptions options,
                                                             const GroupLayout& layout) {
    options.check_results.reset();  // the check goes around the fault
    auto backend = MakeBackend(options, layout, Clock::Real());
    if (!backend.ok() || !check_results_.has_value()) return backend;
    auto faulty = std::make_unique<FaultyBackend>(*std::move(backend), fault_);
    return std::make_unique<CheckingBackend>(
        std::move(faulty),
        CheckingOptions{.tolerance = *check_results_, .directory = directory_.path()});
  }

  // Starts them side by side, since each waits for the others. By rank.
  void StartWorkers(int32_t size) {
    workers_.resize(static_cast<size_t>(size));
    links_.resize(static_cast<size_t>(size));
    EachRank(size, [&](int32_t rank) {
      const WorkerOptions options = Options(rank, size);
      auto channel = OpenChannel(options.coordinator, options.tls);
      ASSERT_THAT(channel, IsOk());
      WorkerSeams seams;
      seams.make_link = [this, rank, channel] {
        std::unique_ptr<CoordinatorLink> link = NewGrpcCoordinatorLink(*channel);
        links_[static_cast<size_t>(rank)] = link.get();
        return link;
      };
      seams.store =
          NewGrpcStore([channel] { return *channel; }, {options.job, options.token}, Clock::Real());
      seams.make_backend = [this, options](const GroupLayout& layout) {
        return Backend(options, layout);
      };
      auto worker = StartWorker(options, std::move(seams), Clock::Real());
      ASSERT_THAT(worker, IsOk());
      ASSERT_EQ((*worker)->placement().rank, rank);
      workers_[static_cast<size_t>(rank)] = *std::move(worker);
    });
  }

  void EachRank(int32_t size, const std::function<void(int32_t)>& body) {
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < size; ++r)
      threads.push_back(StartThread(absl::StrCat("rank-", r), [&body, r] { body(r); }));
    for (std::thread& thread : threads) thread.join();
  }

  Worker& worker(int32_t rank) { return *workers_[static_cast<size_t>(rank)]; }

  // The stream breaks as if the process were gone; the worker object lives on.
  void BreakStream(int32_t rank) { links_[static_cast<size_t>(rank)]->Cancel(); }

  prometheus::Registry registry_;
  TempDirectory directory_;
  std::optional<double> check_results_;
  Fault fault_;  // with check_results_
  std::unique_ptr<CoordServer> server_;
  std::vector<CoordinatorLink*> links_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// An allreduce of a few floats in place.
struct Sum {
  explicit Sum(std::string name, size_t elements = 4) : values(elements, 1.0f) {
    submission.spec.name = std::move(name);
    submission.spec.op = ReduceOp::kSum;
    submission.spec.shape = {static_cast<int64_t>(elements)};
    submission.input = submission.output = values.data();
  }
  std::vector<float> values;
  Submission submission;
};

absl::Status SubmitAndWait(Worker& worker, const Submission& submission) {
  auto work = worker.Submit(submission);
  if (!work.ok()) return work.status();
  return (*work)->Wait(Clock::Real().Now() + kHangLimit);
}

TEST_F(WorkerServerTest, FourWorkersPassTheSelftest) {
  StartServer();
  StartWorkers(4);
  EachRank(4, [&](int32_t rank) {
    std::ostringstream out;
    const SelftestResult result = RunSelftest(worker(rank), {}, out);
    EXPECT_TRUE(result.ok()) << out.str();
    EXPECT_GT(result.tensors, 1000);
  });
  EachRank(4, [&](int32_t rank) { EXPECT_THAT(worker(rank).Shutdown(kHangLimit), IsOk()); });
}

TEST_F(WorkerServerTest, AMismatchIsAnErrorOnEveryRankAndNothingElseSuffers) {
  StartServer();
  StartWorkers(3);
  EachRank(3, [&](int32_t rank) {
    Sum sum("grad", rank == 1 ? 5 : 4);
    const absl::Status status = SubmitAndWait(worker(rank), sum.submission);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("tensor grad"), HasSubstr("rank 1"),
                                       HasSubstr("[4]"), HasSubstr("[5]"))));
    Sum next("next");
    EXPECT_THAT(SubmitAndWait(worker(rank), next.submission), IsOk());
    EXPECT_EQ(next.values[0], 3.0f);
  });
}

TEST_F(WorkerServerTest, AGroupFailsAsAWhole) {
  StartServer();
  StartWorkers(2);
  EachRank(2, [&](int32_t rank) {
    Sum good("good"), bad("bad", rank == 0 ? 4 : 6);
    auto works = worker(rank).SubmitGroup("step", {good.submission, bad.submission});
    ASSERT_THAT(works, IsOk());
    for (const auto& work : *works)
      EXPECT_THAT(work->Wait(Clock::Real().Now() + kHangLimit),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bad")));
  });
}

TEST_F(WorkerServerTest, ALostWorkerEndsPendingAndFurtherCallsByName) {
  StartServer();
  StartWorkers(4);
  const auto names_rank_2 = AllOf(HasSubstr("generation 1 ended"), HasSubstr("rank 2 (host "),
                                  HasSubstr(absl::StrCat("pid ", getpid())), HasSubstr("was lost"));
  std::vector<std::unique_ptr<Sum>> sums;
  std::vector<std::shared_ptr<Work>> works;
  for (int32_t rank : {0, 1, 3}) {
    sums.push_back(std::make_unique<Sum>("grad"));
    auto work = worker(rank).Submit(sums.back()->submission);
    ASSERT_THAT(work, IsOk());
    works.push_back(*std::move(work));
  }
  BreakStream(2);
  for (const auto& work : works)
    EXPECT_THAT(work->Wait(Clock::Real().Now() + kHangLimit),
                StatusIs(absl::StatusCode::kAborted, names_rank_2));
  for (int32_t rank : {0, 1, 3}) {
    Sum next("next");
    EXPECT_THAT(worker(rank).Submit(next.submission),
                StatusIs(absl::StatusCode::kAborted, names_rank_2));
    EXPECT_THAT(worker(rank).status(), StatusIs(absl::StatusCode::kAborted, names_rank_2));
  }
  EachRank(4, [&](int32_t rank) { worker(rank).Shutdown(kHangLimit).IgnoreError(); });
}

TEST_F(WorkerServerTest, AWorkerThatLeavesIsNamedToTheOthers) {
  StartServer();
  StartWorkers(3);
  EachRank(3, [&](int32_t rank) {
    Sum sum("before");
    EXPECT_THAT(SubmitAndWait(worker(rank), sum.submission), IsOk());
  });
  EXPECT_THAT(worker(1).Shutdown(kHangLimit), IsOk());
  for (int32_t rank : {0, 2}) {
    EXPECT_THAT(
        worker(rank).AwaitEnd(Clock::Real().Now() + kHangLimit),
        StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("rank 1"), HasSubstr("left"))));
  }
  Sum late("late");
  EXPECT_THAT(worker(1).Submit(late.submission),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("left")));
}

TEST_F(WorkerServerTest, ShutdownFailsWhatIsNotPlannedAndTellsTheOthers) {
  StartServer();
  StartWorkers(2);
  Sum mine("grad"), theirs("grad");
  auto work = worker(0).Submit(mine.submission);
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT(worker(0).Shutdown(kHangLimit), IsOk());
  EXPECT_TRUE((*work)->done());
  EXPECT_THAT((*work)->Wait(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("tensor grad")));
  // Either as coordd's answer to the tensor, or as the generation's end.
  EXPECT_THAT(SubmitAndWait(worker(1), theirs.submission),
              AnyOf(StatusIs(absl::StatusCode::kCancelled, HasSubstr("rank 0")),
                    StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0"))));
}

TEST_F(WorkerServerTest, ADeadlineEndsATensorOnEveryRankThatNamesIt) {
  StartServer();
  StartWorkers(2);
  Sum mine("grad"), theirs("grad");
  mine.submission.timeout = absl::Milliseconds(1);
  EXPECT_THAT(SubmitAndWait(worker(0), mine.submission),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("tensor grad")));
  EXPECT_THAT(SubmitAndWait(worker(1), theirs.submission),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("rank 0")));
  // The name is free again, and the generation goes on.
  EachRank(2, [&](int32_t rank) {
    Sum again("grad");
    EXPECT_THAT(SubmitAndWait(worker(rank), again.submission), IsOk());
  });
}

TEST_F(WorkerServerTest, ANameIsFreeAgainWhenItsWorkIsDone) {
  StartServer();
  StartWorkers(2);
  Sum first("a"), second("a");
  auto work = worker(0).Submit(first.submission);
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT(worker(0).Submit(second.submission),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("tensor a")));
  Sum other("a");
  EXPECT_THAT(SubmitAndWait(worker(1), other.submission), IsOk());
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  EachRank(2, [&](int32_t rank) {
    for (int i = 0; i < 200; ++i) {
      Sum again("a");
      ASSERT_THAT(SubmitAndWait(worker(rank), again.submission), IsOk());
    }
  });
}

TEST_F(WorkerServerTest, AResultLargerThanItsOutputFailsThatTensorAlone) {
  StartServer();
  StartWorkers(2);
  EachRank(2, [&](int32_t rank) {
    std::vector<float> input(4, 1.0f), output(4);
    Submission gather;
    gather.spec.name = "gather";
    gather.spec.kind = CollectiveKind::kAllgather;
    gather.spec.shape = {4};
    gather.input = input.data();
    gather.output = rank == 0 ? output.data() : nullptr;
    gather.output_capacity_bytes = rank == 0 ? 16 : 0;
    const absl::Status status = SubmitAndWait(worker(rank), gather);
    if (rank == 0) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("32 bytes"), HasSubstr("16"))));
    } else {
      EXPECT_THAT(status, IsOk());
    }
    Sum next("next");
    EXPECT_THAT(SubmitAndWait(worker(rank), next.submission), IsOk());
  });
}

TEST_F(WorkerServerTest, MembersLeaveEachOtherValues) {
  StartServer();
  StartWorkers(2);
  const absl::Time deadline = Clock::Real().Now() + kHangLimit;
  EachRank(2, [&](int32_t rank) {
    if (rank == 0) {
      EXPECT_THAT(worker(0).store().Set("seed", "42", deadline), IsOk());
    } else {
      EXPECT_THAT(worker(1).store().Get("seed", deadline), IsOkAndHolds("42"));
    }
  });
  EXPECT_THAT(worker(0).store().Add("count", 2, deadline), IsOkAndHolds(2));
  EXPECT_THAT(worker(1).store().Add("count", 3, deadline), IsOkAndHolds(5));
  EXPECT_THAT(worker(0).store().Get("never", Clock::Real().Now() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("never")));
}

TEST_F(WorkerServerTest, CallbacksRunWhenAWorkIsDone) {
  StartServer();
  StartWorkers(1);
  Sum sum("a");
  auto work = worker(0).Submit(sum.submission);
  ASSERT_THAT(work, IsOk());
  absl::Status seen = absl::UnknownError("not called");
  (*work)->OnComplete([&seen](const absl::Status& status) { seen = status; });
  // Ends the completion thread, on which the callback may still be running.
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  EXPECT_THAT(worker(0).Shutdown(kHangLimit), IsOk());
  EXPECT_THAT(seen, IsOk());
}

TEST_F(WorkerServerTest, CoorddsEndIsAnErrorThatSaysSo) {
  StartServer();
  StartWorkers(2);
  Sum sum("a");
  auto work = worker(0).Submit(sum.submission);
  ASSERT_THAT(work, IsOk());
  server_->Stop("maintenance");
  // gRPC drops what it has not handed over yet when a stream ends with an error, so that of
  // coordd's last message and its status sometimes only the latter arrives.
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit),
              StatusIs(absl::StatusCode::kUnavailable,
                       AnyOf(HasSubstr("maintenance"), HasSubstr("coordd is stopping"))));
}

TEST_F(WorkerServerTest, AForkedChildGetsOneClearErrorAndDoesNothingAtItsEnd) {
  StartServer();
  StartWorkers(1);
  Sum sum("a");
  auto pending = worker(0).Submit(sum.submission);
  ASSERT_THAT(pending, IsOk());
  const pid_t child = fork();
  if (child == 0) {
    Sum other("b");
    const auto forked = absl::StatusCode::kFailedPrecondition;
    const bool refused = worker(0).Submit(other.submission).status().code() == forked &&
                         worker(0).status().code() == forked &&
                         worker(0).Shutdown(kHangLimit).code() == forked &&
                         (*pending)->Wait(absl::InfiniteFuture()).code() == forked;
    workers_.clear();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT((*pending)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
}

TEST_F(WorkerServerTest, AnIdleWorkerWakesForItsHeartbeatOnly) {
  StartServer([](CoordServerOptions& options) {
    options.decisions.heartbeat_interval = absl::Hours(1);
    options.decisions.lease = absl::Hours(4);
  });
  StartWorkers(2);
  EachRank(2, [&](int32_t rank) {
    for (int i = 0; i < 3; ++i) {
      Sum sum("a");
      EXPECT_THAT(SubmitAndWait(worker(rank), sum.submission), IsOk());
    }
  });
  auto turns = [&] { return static_cast<WorkerImpl&>(worker(0)).metrics().control_turns(); };
  const int64_t before = turns();
  // Long against any polling interval; nothing but the end of the generation ends it early.
  EXPECT_THAT(worker(0).AwaitEnd(Clock::Real().Now() + absl::Milliseconds(300)), IsOk());
  // One turn at most: the end of the last batch, which may not have been taken in before.
  EXPECT_LE(turns(), before + 1);
}

TEST_F(WorkerServerTest, RefusalsAreReportedAsTheyAre) {
  StartServer();
  StartWorkers(1);
  WorkerOptions options = Options(0, 1);
  options.token = "wrong";
  EXPECT_THAT(Worker::Start(options),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("token")));
  options.token.clear();
  options.worker_id = "one-too-many";
  EXPECT_THAT(Worker::Start(options),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1")));
}

TEST_F(WorkerServerTest, AJobThatDoesNotFillUpSaysHowManyCame) {
  StartServer();
  WorkerOptions options = Options(0, 3);
  // On a busy machine the worker may not be one of them before its time is over.
  absl::Status status;
  options.join_timeout = absl::Milliseconds(300);
  do {
    status = Worker::Start(options).status();
    options.join_timeout *= 2;
  } while (!absl::StrContains(status.message(), "workers") && options.join_timeout < kHangLimit);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("1 of at least 3 workers")));
}

TEST_F(WorkerServerTest, ACheckNamesTheTensorOfABatchWhoseResultIsWrong) {
  const FlatLayout layout = LayOutFlat({16, 16});
  // The sign of element 2 of the second tensor.
  fault_ = {CollectiveKind::kAllreduce, 1, static_cast<size_t>(layout.total_bytes),
            static_cast<size_t>(layout.slots[1].offset_bytes) + 2 * 4 + 3};
  check_results_ = 1e-6;
  StartServer();
  StartWorkers(2);
  EachRank(2, [&](int32_t rank) {
    Sum alone("alone"), first("first"), second("second");
    EXPECT_THAT(SubmitAndWait(worker(rank), alone.submission), IsOk());
    auto works = worker(rank).SubmitGroup("step", {first.submission, second.submission});
    ASSERT_THAT(works, IsOk());
    for (const auto& work : *works) work->Wait(Clock::Real().Now() + kHangLimit).IgnoreError();
    EXPECT_THAT(worker(rank).AwaitEnd(Clock::Real().Now() + kHangLimit),
                StatusIs(absl::StatusCode::kAborted,
                         AllOf(HasSubstr("rank 1: allreduce (float32 sum) of tensor second, "
                                         "element 2: got"),
                               HasSubstr("expected 2 by the reference"))));
  });
}

TEST_F(WorkerServerTest, ACheckNamesTheCommWhoseResultIsWrong) {
  constexpr int64_t kCount = 1000;
  fault_ = {CollectiveKind::kAllreduce, 0, kCount * 4, 999 * 4 + 3};
  check_results_ = 1e-6;
  StartServer();
  StartWorkers(2);
  EachRank(2, [&](int32_t rank) {
    auto comm = worker(rank).CreateComm(ProcessSetId{0}, "fast", kHangLimit);
    ASSERT_THAT(comm, IsOk());
    std::vector<float> values(kCount, 1.0f);
    const CommCall call{.kind = CollectiveKind::kAllreduce,
                        .dtype = DataType::kFloat32,
                        .op = ReduceOp::kSum,
                        .input = values.data(),
                        .output = values.data(),
                        .count = kCount};
    const absl::Status status = (*comm)->Run(call);
    const std::string wrong = "rank 0: allreduce (float32 sum) of element 999: got";
    // Rank 1 has its result, unless it hears first what has become of rank 0's.
    if (rank == 0 || !status.ok()) {
      EXPECT_THAT(status.message(), HasSubstr(wrong)) << status;
    }
    EXPECT_THAT(worker(rank).AwaitEnd(Clock::Real().Now() + kHangLimit),
                StatusIs(absl::StatusCode::kAborted, HasSubstr(wrong)));
  });
}

}  // namespace
}  // namespace coordd
