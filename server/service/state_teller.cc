#include "server/service/state_teller.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/door/caller.h"
#include "server/service/caller_shares.h"
#include "server/service/inbox.h"

namespace coordd {
namespace {

absl::Status Gone() { return absl::CancelledError("the caller went away, or its deadline passed"); }

}  // namespace

void StateTeller::Tell(Call call) {
  std::vector<Call> gone;
  const std::string account = AccountOf(*call.caller);
  bool asks = false, is_full = false;
  {
    MutexLock lock(&mu_);
    Waiting& of_caller = waiting_[account];
    if (of_caller.size() >= kWaitingMax) {
      const auto end = std::stable_partition(of_caller.begin(), of_caller.end(),
                                             [](const Call& one) { return !one.is_cancelled(); });
      std::move(end, of_caller.end(), std::back_inserter(gone));
      of_caller.erase(end, of_caller.end());
    }
    is_full = of_caller.size() >= kWaitingMax;
    if (!is_full) of_caller.push_back(std::move(call));
    asks = !std::exchange(has_asked_, true);
  }
  for (const Call& one : gone) one.finish(Gone());
  if (is_full) {
    call.finish(absl::ResourceExhaustedError(
        absl::StrCat("the state of all jobs was not told: ", kWaitingMax, " calls of ", account,
                     " wait for it already: try again when one is answered")));
  }
  if (asks) AskForTurn();
}

void StateTeller::AskForTurn() {
  if (inbox_.Offer(
          Query([this](const CoordinatorState& state, absl::Time now) { TakePart(state, now); })))
    return;
  std::map<std::string, Waiting> all;
  {
    MutexLock lock(&mu_);
    all.swap(waiting_);
    has_asked_ = false;
  }
  if (told_ != nullptr) all[""].push_back(std::move(std::exchange(told_, nullptr)->call));
  const auto busy =
      absl::UnavailableError("coordd is stopping, or has more to do than it can: try again");
  for (const auto& [account, calls] : all)
    for (const Call& call : calls) call.finish(busy);
}

bool StateTeller::TakeNext() {
  MutexLock lock(&mu_);
  if (waiting_.empty()) {
    has_asked_ = false;
    return false;
  }
  auto next = waiting_.upper_bound(last_);
  if (next == waiting_.end()) next = waiting_.begin();
  last_ = next->first;
  told_ = std::make_unique<Telling>();
  told_->call = std::move(next->second.front());
  next->second.pop_front();
  if (next->second.empty()) waiting_.erase(next);
  return true;
}

void StateTeller::TakePart(const CoordinatorState& state, absl::Time now) {
  const absl::Time until = shares_.clock().Now() + kTurn;
  do {
    if (told_ == nullptr && !TakeNext()) return;
    const absl::StatusOr<bool> goes_on = TellPart(*told_, state, now);
    if (goes_on.ok() && *goes_on) continue;
    std::exchange(told_, nullptr)->call.finish(goes_on.status());
  } while (shares_.clock().Now() < until);
  if (told_ != nullptr || TakeNext()) AskForTurn();
}

absl::StatusOr<bool> StateTeller::TellPart(Telling& one, const CoordinatorState& state,
                                           absl::Time now) {
  const Call& call = one.call;
  if (call.is_cancelled()) return Gone();
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
