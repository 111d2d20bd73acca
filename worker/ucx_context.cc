#include "worker/ucx_context.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "worker/ucx_log.h"

namespace coordd {
namespace {

// A peer that hangs must not hold up this rank's end.
constexpr absl::Duration kGreetingTimeout = absl::Seconds(1);

// What coordd sets unless the user has. The shared-memory transports are left out because they do
// not report the end of a peer; the default keepalive of 20 s is far above the 2 s in which a lost
// rank is to be known.
struct Default {
  const char* name;
  const char* value;
};
constexpr std::array<Default, 2> kDefaults = {{{"TLS", "^sm"}, {"KEEPALIVE_INTERVAL", "1s"}}};

// Where UCX is given an interface, that is TCP. There a part of 8 KiB, its own choice, is a call of
// the kernel each. What is sent is handed to the kernel where it lies: a copy of it first cost as
// much as the kernel's own, and messages of 200 KB that were copied did not come through a line of
// 20 Mbit/s that loses packets (tests/chaos, row 12). What is larger than a part has a rendezvous,
// whose small messages took a sixth of the time of those that have none.
constexpr int64_t kTcpMessageBytes = int64_t{256} << 10;
// UCX looks at TCP in every progress. By itself, a rank without endpoints looks only when a thread
// of UCX's has told it to, which is too late for UcxPeers::Connect.
constexpr std::array<Default, 3> kTcpProtocols = {
    {{"ZCOPY_THRESH", "8k"}, {"RNDV_THRESH", "256k"}, {"ADAPTIVE_PROGRESS", "n"}}};
constexpr std::array<Default, 2> kTcpDefaults = {
    {{"TX_SEG_SIZE", "260k"}, {"RX_SEG_SIZE", "260k"}}};

using Config = std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)>;

std::string AddressText(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* bytes =
      address.sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return inet_ntop(address.sa_family, bytes, text.data(), text.size()) == nullptr ? ""
                                                                                  : text.data();
}

absl::StatusOr<std::string> InterfaceWithAddress(const std::string& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::ErrnoToStatus(errno, "listing network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (AddressText(*entry->ifa_addr) == address) return std::string(entry->ifa_name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no network interface of this machine has the address ", address));
}

absl::Status Modify(const UcxFunctions& ucx, ucp_config_t* config, const Environment& environment,
                    const std::string& name, const std::string& value) {
  if (environment.contains(absl::StrCat("UCX_", name))) return absl::OkStatus();
  const ucs_status_t status = ucx.config_modify(config, name.c_str(), value.c_str());
  if (status == UCS_OK) return absl::OkStatus();
  return ucx.Error(absl::StrCat("setting UCX_", name, "=", value), status);
}

// A user who has chosen the network, or what goes over it, may have chosen another kind of it.
bool KnowsTcp(const UcxTransportOptions& options) {
  const Environment& environment = options.environment;
  if (options.local_address.empty() || environment.contains("UCX_NET_DEVICES")) return false;
  const auto chosen = environment.find("UCX_TLS");
  if (chosen == environment.end()) return true;
  const std::vector<absl::string_view> names = absl::StrSplit(chosen->second, ',');
  return std::all_of(names.begin(), names.end(), [](absl::string_view name) {
    constexpr absl::string_view kTcpAndWithinNode[] = {"tcp",   "self", "sm", "shm",
                                                       "posix", "sysv", "cma"};
    return absl::c_linear_search(kTcpAndWithinNode, name);
  });
}

absl::StatusOr<Config> ReadConfig(const UcxFunctions& ucx, const UcxTransportOptions& options) {
  ucp_config_t* raw = nullptr;
  if (ucs_status_t status = ucx.config_read(nullptr, nullptr, &raw); status != UCS_OK)
    return ucx.Error("ucp_config_read", status);
  Config config(raw, ucx.config_release);
  for (const Default& entry : kDefaults)
    COORDD_RETURN_IF_ERROR(Modify(ucx, raw, options.environment, entry.name, entry.value));
  if (options.ports.has_value())
    COORDD_RETURN_IF_ERROR(
        Modify(ucx, raw, options.environment, "PORT_RANGE", options.ports->ToString()));
  if (!options.local_address.empty()) {
    COORDD_ASSIGN_OR_RETURN(const std::string interface,
                            InterfaceWithAddress(options.local_address));
    COORDD_RETURN_IF_ERROR(Modify(ucx, raw, options.environment, "NET_DEVICES", interface));
    if (!KnowsTcp(options)) return config;
    for (const Default& entry : kTcpProtocols)
      COORDD_RETURN_IF_ERROR(Modify(ucx, raw, options.environment, entry.name, entry.value));
    for (const Default& entry : kTcpDefaults) {
      if (options.environment.contains(absl::StrCat("UCX_TCP_", entry.name))) continue;
      COORDD_RETURN_IF_ERROR(Modify(ucx, raw, options.environment, entry.name, entry.value));
    }
  }
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
