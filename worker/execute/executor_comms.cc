// The part of Executor that executes single collectives: of comms, for each of which a thread of
// the program waits, and of hierarchical allreduces between nodes, for which streams of devices do.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/execute/executor.h"
#include "worker/execute/generation_end.h"
#include "worker/interfaces/idle_wait.h"
#include "worker/node/mapped_lane.h"

namespace coordd {
namespace {

// What members that have left said before arrives by then; who waits for more waits in vain.
constexpr absl::Duration kGraceAfterEnd = absl::Seconds(1);
// Enough for a message that is expected; the caller has something else to do.
constexpr int kSweepsForMessages = 8;
// How often whoever does not drive looks at the end of its generation.
constexpr absl::Duration kLook = absl::Milliseconds(50);

absl::Status DataPlaneStopped() { return absl::AbortedError("the data plane has stopped"); }

}  // namespace

// What a caller waits for while the owner of the seat does it. Shared: either may be through first.
struct CommOpening {
  // Constant after construction.
  LaneId lane;
  std::vector<Rank> ranks;

  // Guarded by mu.
  Mutex mu;
  CondVar changed;
  bool answered ABSL_GUARDED_BY(mu) = false;
  absl::StatusOr<std::shared_ptr<MappedLane>> answer ABSL_GUARDED_BY(mu) = nullptr;

  void Answer(absl::StatusOr<std::shared_ptr<MappedLane>> opened) {
    {
      MutexLock lock(&mu);
      answer = std::move(opened);
      answered = true;
    }
    changed.NotifyAll();
  }
};

struct DirectRun {
  CollectiveArgs args;  // taken by the seat

  // Touched by whoever goes on with it.
  absl::Time deadline, give_up;
  bool gave_up = false;

  // Thread-safe by itself: set under mu.
  std::atomic<bool> ended = false;

  // Guarded by mu.
  Mutex mu;
  CondVar changed;
  absl::Status status ABSL_GUARDED_BY(mu);

  void End(absl::Status with) {
    {
      MutexLock lock(&mu);
      status = std::move(with);
      ended.store(true, std::memory_order_release);
    }
    changed.NotifyAll();
  }
};

absl::StatusOr<std::shared_ptr<MappedLane>> Executor::OpenComm(LaneId lane,
                                                               std::vector<Rank> ranks) {
  auto opening = std::make_shared<CommOpening>();
  opening->lane = lane;
  opening->ranks = std::move(ranks);
  if (!inbox_.PushUnbounded(opening)) return DataPlaneStopped();
  CallDriver();
  // Whoever sits in the seat looks there between two steps, also at its end.
  MutexLock lock(&opening->mu);
  while (!opening->answered) opening->changed.Wait(&opening->mu);
  return opening->answer;
}

void Executor::Take(std::shared_ptr<CommOpening>& opening) {
  if (aborted_.load(std::memory_order_acquire)) return opening->Answer(DataPlaneStopped());
  absl::StatusOr<std::shared_ptr<MappedLane>> opened =
      backend_->OpenMappedLane(opening->lane, opening->ranks);
  // A group of its own, which ends with the lane: that of the process set may end before.
  if (opened.ok() && *opened == nullptr) {
    const absl::Status defined =
        backend_->DefineGroup(ProcessSetId{ToInt(opening->lane)}, opening->ranks);
    if (!defined.ok()) opened = defined;
  }
  opening->Answer(std::move(opened));
}

void Executor::CloseComm(LaneId lane, std::shared_ptr<MappedLane> mapped) {
  if (inbox_.PushUnbounded(CommClosed{lane, std::move(mapped)})) CallDriver();
}

void Executor::Take(CommClosed& closed) {
  if (closed.mapped != nullptr) {
    backend_->CloseMappedLane(std::move(closed.mapped));
  } else {
    backend_->EndGroup(ProcessSetId{ToInt(closed.lane)});
  }
}

std::shared_ptr<DirectRun> Executor::BeginDirect(CollectiveArgs args, absl::Time deadline) {
  auto run = std::make_shared<DirectRun>();
  run->args = std::move(args);
  run->deadline = run->give_up = deadline;
  if (!inbox_.PushUnbounded(run)) return nullptr;
  CallDriver(/*waiter_comes=*/true);
  return run;
}

std::optional<absl::Status> Executor::RunAgain(const CollectiveArgs& args, absl::Duration timeout,
                                               absl::Duration most, const GenerationEnd& end,
                                               std::shared_ptr<DirectRun>& begun) noexcept
    ABSL_NO_THREAD_SAFETY_ANALYSIS {  // where it has begun, GoOn leaves the seat
  if (!seat_.TryTakeFree()) return std::nullopt;
  if (seat_.TakeCall()) TakeInputs();
  if (LeavesSomething() || aborted_.load(std::memory_order_acquire)) {
    LeaveSeat();
    return std::nullopt;
  }
  // As DriveDirect waits, but that it does not sleep.
  IdleWait wait(options_.polling_threads, options_.cores);
  absl::Time since = absl::InfinitePast();  // not known before it matters
  const auto goes_on = [&](bool moved) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (seat_.is_called()) return false;
    if (moved) wait.Reset();
    if (moved || (!wait.sleeps_next() && !wait.Wait())) return true;
    const absl::Time now = clock_.Now();
    if (since == absl::InfinitePast()) since = now;
    return !wait.sleeps_next() && !end.ended() && now < since + most;
  };
  const auto launched = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    begun = std::make_shared<DirectRun>();
    return NoteDirect(begun);
  };
  const std::optional<absl::Status> ended = backend_->RunAgain(args, goes_on, launched);
  if (begun == nullptr) {
    LeaveSeat();
    return ended;
  }
  if (since == absl::InfinitePast()) since = clock_.Now();
  begun->deadline = begun->give_up = since + timeout;
  return GoOn(*begun, since + most, end, &wait);
}

std::optional<absl::Status> Executor::GoOnDirect(DirectRun& run, absl::Time pause,
                                                 const GenerationEnd& end) {
  return GoOn(run, pause, end, /*wait=*/nullptr);
}

std::optional<absl::Status> Executor::GoOn(DirectRun& run, absl::Time pause,
                                           const GenerationEnd& end,
                                           IdleWait* wait) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const auto has_ended = [&run] { return run.ended.load(std::memory_order_acquire); };
  const auto gives_up = [&](absl::Time now) {
    if (end.ended()) run.give_up = std::min(run.give_up, now + kGraceAfterEnd);
    return now >= run.give_up;
  };
  const std::function<bool()> stops = [&] {
    const absl::Time now = clock_.Now();
    return gives_up(now) || now >= pause;
  };
  while (!has_ended()) {
    if (IdleWait* const seated = std::exchange(wait, nullptr); seated != nullptr) {
      DriveDirect(run, stops, *seated);
    } else if (seat_.TryTake()) {
      IdleWait fresh(options_.polling_threads, options_.cores);
      DriveDirect(run, stops, fresh);
    }
    if (has_ended()) break;
    const absl::Time now = clock_.Now();
    if (!run.gave_up && gives_up(now)) {
      run.gave_up = true;
      Abort();
    }
    if (now >= pause) {
      seat_.Decline();
      return std::nullopt;
    }
    // Somebody else drives, the executor's thread if nobody does.
    MutexLock lock(&run.mu);
    clock_.Await(&run.mu, &run.changed, has_ended, std::min(pause, now + kLook));
  }
  MutexLock lock(&run.mu);
  if (run.gave_up && !run.status.ok() && clock_.Now() >= run.deadline)
    return absl::DeadlineExceededError("not every member was through with it in time");
  return run.status;
}

CollectiveBackend::Done Executor::NoteDirect(std::shared_ptr<DirectRun> run) {
  ++at_backend_.direct_runs;
  return [this, run = std::move(run)](absl::Status status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    --at_backend_.direct_runs;
    run->End(std::move(status));
  };
}

void Executor::Take(std::shared_ptr<DirectRun>& run) {
  const absl::Status launched = backend_->Launch(std::move(run->args), NoteDirect(run));
  if (launched.ok()) return;
  --at_backend_.direct_runs;
  run->End(launched);
}

void Executor::LaunchExchange(CollectiveArgs args, CollectiveBackend::Done done) {
  Input input = Exchange{std::move(args), std::move(done)};
  if (inbox_.PushUnbounded(std::move(input))) return CallDriver();
  std::move(std::get<Exchange>(input).done)(DataPlaneStopped());
}

bool Executor::TryLaunchMessage(CollectiveArgs args, CollectiveBackend::Done done) {
  if (!inbox_.PushUnbounded(Exchange{std::move(args), std::move(done), /*is_message=*/true}))
    return false;
  CallDriver(/*waiter_comes=*/true);
  return true;
}

void Executor::DriveMessages() noexcept {
  if (!seat_.TryTake()) return;  // whoever sits there has been called, or there is nothing to do
  for (int sweeps = 0; sweeps < kSweepsForMessages && Sweep(); ++sweeps) continue;
  LeaveSeat();
}

void Executor::Take(Exchange& exchange) {
  // Its group may not have been defined any more.
  if (aborted_.load(std::memory_order_acquire)) return std::move(exchange.done)(DataPlaneStopped());
  const int messages = exchange.is_message ? 1 : 0;
  ++at_backend_.direct_runs;
  at_backend_.messages += messages;
  auto done = std::make_shared<CollectiveBackend::Done>(std::move(exchange.done));
  const absl::Status launched =
      backend_->Launch(std::move(exchange.args),
                       [this, done, messages](absl::Status status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         --at_backend_.direct_runs;
                         at_backend_.messages -= messages;
                         std::move (*done)(std::move(status));
                       });
  if (launched.ok()) return;
  --at_backend_.direct_runs;
  at_backend_.messages -= messages;
  std::move (*done)(launched);
}

void Executor::DriveDirect(const DirectRun& run, const std::function<bool()>& stops,
                           IdleWait& wait) noexcept {
  while (!run.ended.load(std::memory_order_acquire)) {
    if (Sweep()) {
      wait.Reset();
    } else if (idle() || (WaitForMore(wait) && stops())) {
      break;
    }
  }
  wait.Reset();  // the bell is the next one's
  LeaveSeat();
}

}  // namespace coordd
