#include "worker/gpu/nccl/communicator_maker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "worker/gpu/nccl/store_end.h"
#include "worker/gpu/nccl/store_limits.h"

namespace coordd {
namespace {

// Init takes milliseconds to seconds; the first polls come soon.
constexpr absl::Duration kPollMin = absl::Microseconds(200);
constexpr absl::Duration kPollMax = absl::Milliseconds(20);
constexpr absl::Duration kFirstReport = absl::Seconds(10);
constexpr absl::Duration kReportInterval = absl::Seconds(60);
// While NCCL shrinks, the store is asked as often as that whether another rank has failed.
constexpr absl::Duration kVerdictInterval = absl::Milliseconds(200);
constexpr char kShrunk[] = "shrunk";  // how many ranks
constexpr char kVerdict[] = "shrink";
constexpr char kYes[] = "yes";
constexpr char kNo[] = "no";

}  // namespace

CommunicatorMaker::CommunicatorMaker(std::shared_ptr<NcclRuntime> runtime, NcclPlace place,
                                     Store& store, Clock& clock, NcclWatchdog& watchdog,
                                     absl::Time deadline, CommunicatorMakerOptions options,
                                     std::optional<ShrinkPlan> shrink)
    : runtime_(std::move(runtime)),
      place_(std::move(place)),
      started_(clock.Now()),
      deadline_(deadline),
      options_(options),
      store_(store),
      clock_(clock),
      watchdog_(watchdog),
      next_report_(started_ + kFirstReport),
      shrink_(std::move(shrink)) {
  thread_ = StartThread("nccl-init", [this] {
    runtime_->device->OwnThisThread();
    auto made = Make();
    if (!made.ok()) made = EndOr(made.status());
    MutexLock lock(&mu_);
    result_ = std::move(made);
  });
}

CommunicatorMaker::~CommunicatorMaker() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::optional<absl::StatusOr<std::shared_ptr<NcclCommunicator>>> CommunicatorMaker::Take() {
  MutexLock lock(&mu_);
  return std::exchange(result_, std::nullopt);
}

std::string CommunicatorMaker::Key(absl::string_view name) const {
  if (place_.node >= 0)
    return absl::StrCat("nccl-node/", ToInt(place_.group), "/", place_.node, "/", name);
  return absl::StrCat(place_.for_graphs ? "nccl-graphs/" : "nccl/", ToInt(place_.group), "/", name);
}

bool CommunicatorMaker::StoppedBy(absl::Time until) {
  MutexLock lock(&mu_);
  return clock_.Await(
      &mu_, &changed_,
      [this] {
        mu_.AssertHeld();
        return stop_;
      },
      until);
}

absl::Status CommunicatorMaker::Late(absl::string_view doing) {
  const absl::StatusOr<int64_t> arrived = store_.Add(Key("arrived"), 0, clock_.Now() + kStoreLimit);
  return absl::DeadlineExceededError(absl::StrCat(
      "the communicator of process set ", ToInt(place_.group),
      place_.node >= 0 ? absl::StrCat(" on its node ", place_.node) : "", " was not there after ",
      absl::FormatDuration(absl::Trunc(clock_.Now() - started_, absl::Milliseconds(1))), ": rank ",
      place_.rank, " was ", doing, "; ",
      arrived.ok() ? absl::StrCat(*arrived) : "an unknown number", " of ", place_.size,
      " ranks have come"));
}

// No key begins another.
std::string CommunicatorMaker::IdKey(int32_t number) const {
  return Key(absl::StrCat("id/", absl::Dec(number, absl::kZeroPad6)));
}

int32_t CommunicatorMaker::IdCount() const {
  const bool scalable = place_.size >= options_.scalable_from &&
                        runtime_->nccl.functions.CommInitRankScalable != nullptr;
  return scalable ? (place_.size + options_.ranks_per_id - 1) / options_.ranks_per_id : 1;
}

int32_t CommunicatorMaker::OwnId() const {
  const int32_t number = place_.rank / options_.ranks_per_id;
  return number < IdCount() && MinterOf(number) == place_.rank ? number : -1;
}

absl::StatusOr<NcclUniqueId> CommunicatorMaker::MintId(int32_t number) {
  NcclUniqueId id;
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_->device, place_.device));
  const NcclResult result = runtime_->nccl.functions.GetUniqueId(&id);
  if (result != NcclResult::kSuccess) {
    const char* detail = runtime_->nccl.functions.GetLastError(nullptr);
    return absl::UnavailableError(
        NcclErrorText({.call = "ncclGetUniqueId",
                       .error = runtime_->nccl.functions.GetErrorString(result),
                       .detail = detail != nullptr ? detail : ""},
                      place_));
  }
  COORDD_RETURN_IF_ERROR(store_.Set(IdKey(number), std::string(id.bytes, sizeof(id.bytes)),
                                    std::min(deadline_, clock_.Now() + kStoreLimit)));
  return id;
}

absl::StatusOr<std::vector<NcclUniqueId>> CommunicatorMaker::Ids() {
  std::vector<NcclUniqueId> ids(static_cast<size_t>(IdCount()));
  const int32_t own = OwnId();
  // Before it waits for those of others, who wait for this one.
  if (own >= 0) {
    COORDD_ASSIGN_OR_RETURN(ids[static_cast<size_t>(own)], MintId(own));
  }
  for (int32_t number = 0; number < IdCount(); ++number) {
    if (number == own) continue;
    COORDD_ASSIGN_OR_RETURN(ids[static_cast<size_t>(number)], AwaitId(number));
  }
  return ids;
}

absl::StatusOr<NcclUniqueId> CommunicatorMaker::AwaitId(int32_t number) {
  while (true) {
    const absl::Time slice = std::min(deadline_, clock_.Now() + kGetSlice);
    const absl::StatusOr<std::string> value = store_.Get(IdKey(number), slice);
    if (value.ok()) {
      NcclUniqueId id;
      if (value->size() != sizeof(id.bytes)) {
        return absl::InternalError(absl::StrCat("the NCCL id of process set ", ToInt(place_.group),
                                                " has ", value->size(), " bytes, expected ",
                                                sizeof(id.bytes)));
      }
      std::memcpy(id.bytes, value->data(), sizeof(id.bytes));
      return id;
    }
    if (!absl::IsDeadlineExceeded(value.status())) return value.status();
    if (clock_.Now() >= deadline_)
      return Late(absl::StrCat("waiting for the id that rank ", MinterOf(number), " mints"));
    if (StoppedBy(absl::InfinitePast())) return absl::AbortedError("the generation is over");
  }
}

// By now all ranks have every id.
void CommunicatorMaker::ForgetOwnId() {
  const int32_t own = OwnId();
  if (own < 0) return;
  absl::Status deleted = store_.DeletePrefix(IdKey(own), clock_.Now() + kStoreLimit);
  if (own == 0) deleted.Update(store_.DeletePrefix(Key("arrived"), clock_.Now() + kStoreLimit));
  if (!deleted.ok()) COORDD_LOG(kWarning, "a used NCCL id stays in the store: ", deleted.message());
}

absl::Status CommunicatorMaker::AwaitReady(NcclCommunicator& communicator) {
  absl::Duration poll = kPollMin;
  while (true) {
    COORDD_ASSIGN_OR_RETURN(const bool pending, communicator.Pending());
    if (!pending) return absl::OkStatus();
    const absl::Time now = clock_.Now();
    if (now >= deadline_) return Late("connecting");
    if (now >= next_report_) {
      next_report_ = now + kReportInterval;
      COORDD_LOG(kWarning, Late("connecting").message(), "; still waiting");
    }
    if (StoppedBy(now + poll)) return absl::AbortedError("the generation is over");
    poll = std::min(2 * poll, kPollMax);
  }
}

absl::Status CommunicatorMaker::AwaitShrunk(NcclCommunicator& communicator) {
  const absl::Time limit = std::min(deadline_, clock_.Now() + options_.shrink_limit);
  absl::Duration poll = kPollMin;
  absl::Time next_look = clock_.Now() + kVerdictInterval;
  while (true) {
    COORDD_ASSIGN_OR_RETURN(const bool pending, communicator.Pending());
    if (!pending) return absl::OkStatus();
    const absl::Time now = clock_.Now();
    if (now >= limit) {
      return absl::DeadlineExceededError(absl::StrCat("ncclCommShrink was not through after ",
                                                      absl::FormatDuration(options_.shrink_limit)));
    }
    if (StoppedBy(now + poll)) return absl::CancelledError("the generation is over");
    if (now >= next_look) {
      next_look = now + kVerdictInterval;
      // Not all have counted themselves, so there is no other verdict.
      if (store_.Get(Key(kVerdict), clock_.Now() + kPollMax).ok())
        return absl::AbortedError("another rank has given it up");
    }
    poll = std::min(2 * poll, kPollMax);
  }
}

absl::StatusOr<bool> CommunicatorMaker::AgreeOnShrunk(const absl::Status& here) {
  const absl::Time by = std::min(deadline_, clock_.Now() + kStoreLimit);
  if (!here.ok()) {
    COORDD_RETURN_IF_ERROR(store_.Set(Key(kVerdict), kNo, by));
    return false;
  }
  COORDD_ASSIGN_OR_RETURN(const int64_t shrunk, store_.Add(Key(kShrunk), 1, by));
  if (shrunk == place_.size) COORDD_RETURN_IF_ERROR(store_.Set(Key(kVerdict), kYes, by));
  while (true) {
    const absl::StatusOr<std::string> verdict =
        store_.Get(Key(kVerdict), std::min(deadline_, clock_.Now() + kGetSlice));
    if (verdict.ok()) return *verdict == kYes;
    if (!absl::IsDeadlineExceeded(verdict.status())) return verdict.status();
    if (clock_.Now() >= deadline_) return Late("waiting for the others to shrink theirs");
    if (StoppedBy(absl::InfinitePast())) return absl::AbortedError("the generation is over");
  }
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> CommunicatorMaker::Shrink() {
  const std::shared_ptr<NcclCommunicator> parent =
      shrink_->from != nullptr ? shrink_->from->Take() : nullptr;
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> shrunk =
      absl::UnavailableError("this rank has no communicator of the last generation");
  if (parent != nullptr) shrunk = NcclCommunicator::BeginShrink(parent, place_, shrink_->excluded);
  absl::Status here = shrunk.status();
  if (shrunk.ok()) {
    watchdog_.Watch(*shrunk);
    here = AwaitShrunk(**shrunk);
  }
  absl::StatusOr<bool> all = absl::IsCancelled(here) ? here : AgreeOnShrunk(here);
  if (shrunk.ok() && (!all.ok() || !*all)) watchdog_.Retire(*shrunk);
  // Else it goes with what was to come of it.
  if (parent != nullptr && (!shrunk.ok() || here.ok())) {
    watchdog_.Watch(parent);
    watchdog_.Retire(parent);
  }
  COORDD_RETURN_IF_ERROR(all.status());
  if (!*all) {
    COORDD_LOG(
        kWarning, "the communicator of process set ", ToInt(place_.group),
        " is not shrunk but made anew: ", here.ok() ? "another rank could not" : here.message());
    return nullptr;
  }
  COORDD_LOG(kInfo, "the communicator of process set ", ToInt(place_.group), " was shrunk from ",
             parent->place().size, " to ", place_.size, " ranks in ",
             absl::ToInt64Milliseconds(clock_.Now() - started_), " ms");
  return *std::move(shrunk);
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> CommunicatorMaker::Make() {
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclCommunicator> communicator, MakeOrigin());
  if (!options_.direct) return communicator;
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> direct =
      NcclCommunicator::BeginDirect(communicator);
  absl::Status status = direct.status();
  if (direct.ok()) {
    watchdog_.WatchInstead(communicator, *direct);
    status = AwaitReady(**direct);
  }
  if (status.ok()) return direct;
  if (absl::IsAborted(status)) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(),
                                                  " (COORDD_GPU_DIRECT=0 on all "
                                                  "ranks does without)"));
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> CommunicatorMaker::MakeOrigin() {
  COORDD_RETURN_IF_ERROR(
      store_.Add(Key("arrived"), 1, std::min(deadline_, clock_.Now() + kStoreLimit)).status());
  if (shrink_.has_value()) {
    COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclCommunicator> shrunk, Shrink());
    if (shrunk != nullptr) return shrunk;
  }
  COORDD_ASSIGN_OR_RETURN(std::vector<NcclUniqueId> ids, Ids());
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclCommunicator> communicator,
                          NcclCommunicator::Begin(runtime_, place_, absl::MakeSpan(ids)));
  watchdog_.Watch(communicator);
  COORDD_RETURN_IF_ERROR(AwaitReady(*communicator));
  ForgetOwnId();
  return communicator;
}

}  // namespace coordd
