#include "worker/gpu/plane/device_agreement.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "worker/gpu/nccl/store_end.h"
#include "worker/gpu/nccl/store_limits.h"

namespace coordd {
DeviceAgreement::DeviceAgreement(Place place, DeviceClaim own, DeviceRules rules, Store& store,
                                 Clock& clock, std::function<void()> agreed)
    : place_(place),
      own_(std::move(own)),
      rules_(rules),
      store_(store),
      clock_(clock),
      agreed_(std::move(agreed)) {
  thread_ = StartThread("gpu-agree", [this] {
    auto decision = Agree();
    {
      MutexLock lock(&mu_);
      if (stop_) return;
      decision_ = std::move(decision);
    }
    agreed_();
  });
}

DeviceAgreement::~DeviceAgreement() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

std::optional<absl::StatusOr<DeviceDecision>> DeviceAgreement::decision() const {
  MutexLock lock(&mu_);
  return decision_;
}

std::string DeviceAgreement::Key(absl::string_view name) const {
  return absl::StrCat("gpu/", ToInt(place_.process_set), "/", name);
}

absl::StatusOr<std::string> DeviceAgreement::Get(const std::string& key) {
  while (true) {
    absl::StatusOr<std::string> value = store_.Get(key, clock_.Now() + kGetSlice);
    if (!absl::IsDeadlineExceeded(value.status())) {
      COORDD_RETURN_IF_ERROR(EndOr(value.status()));
      return value;
    }
    MutexLock lock(&mu_);
    if (stop_) return absl::AbortedError("the generation is over");
  }
}

absl::StatusOr<DeviceDecision> DeviceAgreement::Agree() {
  if (place_.size == 1) return DecideOnDevices({own_}, rules_);
  if (place_.index > 0) {
    COORDD_RETURN_IF_ERROR(EndOr(store_.Set(Key(absl::StrCat(place_.index)), EncodeClaim(own_),
                                            clock_.Now() + kStoreLimit)));
    COORDD_ASSIGN_OR_RETURN(const std::string decision, Get(Key("decision")));
    return DecodeDecision(decision);
  }
  std::vector<DeviceClaim> claims = {own_};
  for (int32_t index = 1; index < place_.size; ++index) {
    COORDD_ASSIGN_OR_RETURN(const std::string text, Get(Key(absl::StrCat(index))));
    COORDD_ASSIGN_OR_RETURN(DeviceClaim claim, DecodeClaim(text));
    claims.push_back(std::move(claim));
  }
  absl::StatusOr<DeviceDecision> decision = DecideOnDevices(claims, rules_);
  COORDD_RETURN_IF_ERROR(
      EndOr(store_.Set(Key("decision"), EncodeDecision(decision), clock_.Now() + kStoreLimit)));
  return decision;
}

}  // namespace coordd
