#include "worker/nccl/communicator_maker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/thread.h"
#include "worker/nccl/store_limits.h"

namespace coordd {
namespace {

// Init takes milliseconds to seconds; the first polls come soon.
constexpr absl::Duration kPollMin = absl::Microseconds(200);
constexpr absl::Duration kPollMax = absl::Milliseconds(20);
constexpr absl::Duration kFirstReport = absl::Seconds(10);
constexpr absl::Duration kReportInterval = absl::Seconds(60);

}  // namespace

CommunicatorMaker::CommunicatorMaker(std::shared_ptr<NcclRuntime> runtime, NcclPlace place,
                                     Store& store, Clock& clock, NcclWatchdog& watchdog,
                                     absl::Time deadline, CommunicatorMakerOptions options)
    : runtime_(std::move(runtime)),
      place_(std::move(place)),
      started_(clock.Now()),
      deadline_(deadline),
      options_(options),
      store_(store),
      clock_(clock),
      watchdog_(watchdog),
      next_report_(started_ + kFirstReport) {
  thread_ = StartThread("nccl-init", [this] {
    runtime_->device->OwnThisThread();
    auto made = Make();
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
  // Neither begins another: what is deleted with "nccl/0/" is of that communicator alone.
  if (place_.node >= 0)
    return absl::StrCat("nccl-node/", ToInt(place_.group), "/", place_.node, "/", name);
  return absl::StrCat("nccl/", ToInt(place_.group), "/", name);
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

absl::StatusOr<std::vector<NcclUniqueId>> CommunicatorMaker::MintIds(int32_t count) {
  std::vector<NcclUniqueId> ids(static_cast<size_t>(count));
  COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*runtime_->device, place_.device));
  std::string value;
  for (NcclUniqueId& id : ids) {
    const NcclResult result = runtime_->nccl.functions.GetUniqueId(&id);
    if (result != NcclResult::kSuccess) {
      const char* detail = runtime_->nccl.functions.GetLastError(nullptr);
      return absl::UnavailableError(
          NcclErrorText({.call = "ncclGetUniqueId",
                         .error = runtime_->nccl.functions.GetErrorString(result),
                         .detail = detail != nullptr ? detail : ""},
                        place_));
    }
    value.append(id.bytes, sizeof(id.bytes));
  }
  COORDD_RETURN_IF_ERROR(
      store_.Set(Key("id"), std::move(value), std::min(deadline_, clock_.Now() + kStoreLimit)));
  return ids;
}

absl::StatusOr<std::vector<NcclUniqueId>> CommunicatorMaker::Ids() {
  const bool scalable = place_.size >= options_.scalable_from &&
                        runtime_->nccl.functions.CommInitRankScalable != nullptr;
  const int32_t count =
      scalable ? (place_.size + options_.ranks_per_id - 1) / options_.ranks_per_id : 1;
  if (place_.rank == 0) return MintIds(count);
  while (true) {
    const absl::Time slice = std::min(deadline_, clock_.Now() + kGetSlice);
    const absl::StatusOr<std::string> value = store_.Get(Key("id"), slice);
    if (value.ok()) {
      std::vector<NcclUniqueId> ids(static_cast<size_t>(count));
      const size_t expected = ids.size() * sizeof(NcclUniqueId);
      if (value->size() != expected) {
        return absl::InternalError(absl::StrCat("the NCCL ids of process set ", ToInt(place_.group),
                                                " have ", value->size(), " bytes, expected ",
                                                expected));
      }
      std::memcpy(ids.data(), value->data(), expected);
      return ids;
    }
    if (!absl::IsDeadlineExceeded(value.status())) return value.status();
    if (clock_.Now() >= deadline_) return Late("waiting for the id that rank 0 mints");
    if (StoppedBy(absl::InfinitePast())) return absl::AbortedError("the generation is over");
  }
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

absl::StatusOr<std::shared_ptr<NcclCommunicator>> CommunicatorMaker::Make() {
  COORDD_RETURN_IF_ERROR(
      store_.Add(Key("arrived"), 1, std::min(deadline_, clock_.Now() + kStoreLimit)).status());
  COORDD_ASSIGN_OR_RETURN(std::vector<NcclUniqueId> ids, Ids());
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclCommunicator> communicator,
                          NcclCommunicator::Begin(runtime_, place_, absl::MakeSpan(ids)));
  watchdog_.Watch(communicator);
  COORDD_RETURN_IF_ERROR(AwaitReady(*communicator));
  if (place_.rank == 0) {
    const absl::Status deleted = store_.DeletePrefix(Key(""), clock_.Now() + kStoreLimit);
    if (!deleted.ok())
      COORDD_LOG(kWarning, "a used NCCL id stays in the store: ", deleted.message());
  }
  return communicator;
}

}  // namespace coordd
