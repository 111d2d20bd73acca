#include "worker/transport/ucx/ucx_context.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/net/address.h"
#include "worker/transport/peers/network_interface.h"
#include "worker/transport/ucx/ucx_log.h"
#include "worker/transport/ucx/ucx_settings.h"

namespace coordd {
namespace {

// A peer that hangs must not hold up this rank's end.
constexpr absl::Duration kGreetingTimeout = absl::Seconds(1);

// Where UCX is given an interface, that is TCP, and this is its part there, label and padding aside
// (TX_SEG_SIZE).
constexpr int64_t kTcpMessageBytes = int64_t{256} << 10;

using Config = std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)>;

// Others reach what listens there, so it is said.
absl::StatusOr<std::string> InterfaceInsteadOfLoopback(const UcxVersion& version) {
  const absl::StatusOr<NetworkInterface> other = InterfaceBesideLoopback();
  if (!other.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "UCX ", version.ToString(), " reaches nobody over the loopback interface, and ",
        other.status().message(), "; expected UCX 1.19 or before, or 1.21 or later"));
  }
  static std::atomic<bool> is_said = false;
  if (!is_said.exchange(true)) {
    COORDD_LOG(kWarning, "UCX ", version.ToString(),
               " reaches nobody over the loopback interface, which 1.19 and 1.21 do: it uses ",
               other->name, " and listens at ", other->address);
  }
  return other->name;
}

// Empty: UCX chooses.
absl::StatusOr<std::string> ChosenInterface(const UcxVersion& version,
                                            const UcxTransportOptions& options) {
  if (options.local_address.empty() || options.only_rdma) return "";
  const bool is_users = options.environment.contains("UCX_NET_DEVICES");
  if (!is_users && IsLoopback(options.local_address) && ReachesNobodyOverLoopback(version))
    return InterfaceInsteadOfLoopback(version);
  absl::StatusOr<std::string> interface = InterfaceOf(options.local_address);
  if (absl::IsNotFound(interface.status()))
    return absl::InvalidArgumentError(interface.status().message());
  return interface;
}

absl::Status Set(const UcxFunctions& ucx, ucp_config_t* config, const UcxSetting& setting) {
  const ucs_status_t status =
      ucx.config_modify(config, setting.name.c_str(), setting.value.c_str());
  if (status == UCS_OK) return absl::OkStatus();
  const std::string what =
      absl::StrCat("UCX ", ucx.version.ToString(), " does not take UCX_", setting.name, "=",
                   setting.value, " (", ucx.status_string(status), ")");
  if (!setting.needed_to.empty()) {
    return absl::UnavailableError(absl::StrCat(what, ", which is needed to ", setting.needed_to));
  }
  COORDD_LOG(kDebug, what, ": it is left out");
  return absl::OkStatus();
}

absl::StatusOr<Config> ReadConfig(const UcxFunctions& ucx, const UcxTransportOptions& options) {
  ucp_config_t* raw = nullptr;
  if (ucs_status_t status = ucx.config_read(nullptr, nullptr, &raw); status != UCS_OK)
    return ucx.Error("ucp_config_read", status);
  Config config(raw, ucx.config_release);
  COORDD_ASSIGN_OR_RETURN(const std::string interface, ChosenInterface(ucx.version, options));
  for (const UcxSetting& setting : UcxSettings(ucx.version, options, interface))
    COORDD_RETURN_IF_ERROR(Set(ucx, raw, setting));
  return config;
}

}  // namespace

UcxContext& UcxContext::operator=(UcxContext&& other) noexcept {
  std::swap(ucx_, other.ucx_);
  std::swap(context_, other.context_);
  std::swap(worker_, other.worker_);
  std::swap(message_bytes_max_, other.message_bytes_max_);
  return *this;
}

UcxContext::~UcxContext() {
  if (worker_ != nullptr) ucx_->worker_destroy(worker_);
  if (context_ != nullptr) ucx_->cleanup(context_);
}

bool UcxContext::Flush(Clock& clock, absl::Time deadline) {
  ucp_request_param_t params = {};
  void* const request = ucx_->worker_flush_nbx(worker_, &params);
  if (!UCS_PTR_IS_PTR(request)) return request == nullptr;
  ucs_status_t status = UCS_INPROGRESS;
  while (status == UCS_INPROGRESS && clock.Now() < deadline) {
    ucx_->worker_progress(worker_);
    status = ucx_->request_check_status(request);
  }
  ucx_->request_free(request);
  return status == UCS_OK;
}

// UCX up to 1.13 ends the whole process (an assertion in ucp_request.c) when its worker ends while
// an endpoint that another rank has asked for has its answer to send, and waits for a TCP
// connection; a connection under way keeps a flush from ending.
void UcxContext::End(Clock& clock) {
  if (Flush(clock, clock.Now() + kGreetingTimeout)) return;
  COORDD_LOG(kWarning,
             "UCX is still connecting to a rank that does not answer: its worker stays until this "
             "process ends");
  Keep();
}

bool UcxContext::EndsBadlyAfterLosses() const { return ucx_->version == UcxVersion{1, 20, 0}; }

void UcxContext::Keep() {
  // Where a leak checker finds them.
  static std::mutex mu;
  static auto* const abandoned = new std::vector<std::pair<ucp_context_h, ucp_worker_h>>();
  const std::lock_guard lock(mu);
  abandoned->emplace_back(std::exchange(context_, nullptr), std::exchange(worker_, nullptr));
}

absl::StatusOr<UcxContext> UcxContext::Open(const UcxFunctions& ucx,
                                            const UcxTransportOptions& options,
                                            const GroupLayout& layout) {
  SendUcxLogToStderr(ucx, options.environment);
  COORDD_ASSIGN_OR_RETURN(const Config config, ReadConfig(ucx, options));
  UcxContext opened;
  opened.ucx_ = &ucx;
  if (KnowsTcp(options)) opened.message_bytes_max_ = kTcpMessageBytes;
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_AM;
  params.estimated_num_eps = static_cast<size_t>(layout.size());
  ucs_status_t status =
      ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config.get(), &opened.context_);
  if (status != UCS_OK) return ucx.Error("ucp_init", status);
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Several threads, one at a time: whoever sits in the driver's seat.
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucx.worker_create(opened.context_, &worker_params, &opened.worker_);
  if (status != UCS_OK) return ucx.Error("ucp_worker_create", status);
  return opened;
}

absl::Status UcxContext::Handle(unsigned number, ucp_am_recv_callback_t handler, void* argument) {
  ucp_am_handler_param_t params = {};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = number;
  params.cb = handler;
  params.arg = argument;
  const ucs_status_t status = ucx_->worker_set_am_recv_handler(worker_, &params);
  return status == UCS_OK ? absl::OkStatus()
                          : ucx_->Error("ucp_worker_set_am_recv_handler", status);
}

absl::StatusOr<std::string> UcxContext::Address() const {
  ucp_address_t* address = nullptr;
  size_t size = 0;
  const ucs_status_t status = ucx_->worker_get_address(worker_, &address, &size);
  if (status != UCS_OK) return ucx_->Error("ucp_worker_get_address", status);
  const std::string bytes(reinterpret_cast<const char*>(address), size);
  ucx_->worker_release_address(worker_, address);
  return bytes;
}

}  // namespace coordd
