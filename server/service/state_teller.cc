#include "server/service/state_teller.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/service/caller_shares.h"
#include "server/service/inbox.h"

namespace coordd {

void StateTeller::Tell(Call call) {
  auto one = std::make_unique<Telling>();
  one->call = std::move(call);
  {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(one));
    if (waiting_.size() > 1) return;
  }
  AskForTurn();
}

void StateTeller::AskForTurn() {
  if (inbox_.Offer(
          Query([this](const CoordinatorState& state, absl::Time now) { TakePart(state, now); })))
    return;
  std::deque<std::unique_ptr<Telling>> all;
  {
    MutexLock lock(&mu_);
    all.swap(waiting_);
  }
  const auto busy =
      absl::UnavailableError("coordd is stopping, or has more to do than it can: try again");
  for (const auto& one : all) one->call.finish(busy);
}

void StateTeller::TakePart(const CoordinatorState& state, absl::Time now) {
  Telling* first = nullptr;
  {
    MutexLock lock(&mu_);
    first = waiting_.front().get();  // only whoever has the turn takes it away
  }
  const absl::StatusOr<bool> goes_on = TellPart(*first, state, now);
  std::unique_ptr<Telling> done;
  bool is_last = false;
  if (!goes_on.ok() || !*goes_on) {
    MutexLock lock(&mu_);
    done = std::move(waiting_.front());
    waiting_.pop_front();
    is_last = waiting_.empty();
  }
  if (done != nullptr) done->call.finish(goes_on.status());
  if (!is_last) AskForTurn();
}

absl::StatusOr<bool> StateTeller::TellPart(Telling& one, const CoordinatorState& state,
                                           absl::Time now) {
  const Call& call = one.call;
  if (call.is_cancelled())
    return absl::CancelledError("the caller went away, or its deadline passed");
  absl::StatusOr<bool> goes_on = false;
  const auto tell = [&] {
    const int jobs = call.state->jobs_size();
    goes_on = state.DescribeNextTo(*call.caller, *call.request, now, &one.told, call.state);
    for (int job = jobs; job < call.state->jobs_size(); ++job)
      one.bytes += call.state->jobs(job).ByteSizeLong();
  };
  if (one.told.has_begun) {
    shares_.GoOn(*call.caller, tell);
  } else {
    COORDD_RETURN_IF_ERROR(shares_.InTurn(*call.caller, {Name(coordd::Call::kGetState), ""}, tell));
  }
  if (!goes_on.ok() || one.bytes <= bytes_max_) return goes_on;
  const int told = call.state->jobs_size();
  call.state->Clear();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the state of all jobs is more than one answer holds, ", bytes_max_ >> 20, " MiB: the first ",
      told, " jobs have ", one.bytes >> 20, " MiB; ask for one job by its name"));
}

}  // namespace coordd
