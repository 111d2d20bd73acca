#include "worker/transport/ucx/ucx_settings.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace coordd {
namespace {

// Settings of a transport have its name in front from 1.17 on. Before, a name with it is nobody's;
// since, one without is: UCX warns of it, from 1.20.1 on it refuses it.
constexpr UcxVersion kTransportsNamedFrom = {1, 17, 0};

class Settings {
 public:
  Settings(const UcxVersion& version, const Environment& environment)
      : names_transports_(version >= kTransportsNamedFrom), environment_(environment) {}

  void Add(const char* name, std::string value, std::string needed_to = "") {
    if (environment_.contains(absl::StrCat("UCX_", name))) return;
    settings_.push_back({name, std::move(value), std::move(needed_to)});
  }
  // One of the transport TCP.
  void AddOfTcp(const char* name, std::string value, std::string needed_to = "") {
    const std::string full_name = absl::StrCat("TCP_", name);
    if (environment_.contains(absl::StrCat("UCX_", full_name))) return;
    Add(names_transports_ ? full_name.c_str() : name, std::move(value), std::move(needed_to));
  }
  std::vector<UcxSetting> Take() && { return std::move(settings_); }

 private:
  const bool names_transports_;
  const Environment& environment_;
  std::vector<UcxSetting> settings_;
};

// Where UCX is given an interface, that is TCP.
void AddTcpProtocols(Settings& settings) {
  // What is sent is handed to the kernel where it lies: a copy of it first cost as much as the
  // kernel's own, and messages of 200 KB that were copied did not come through a line of 20 Mbit/s
  // that loses packets (tests/chaos, row 12).
  settings.Add("ZCOPY_THRESH", "8k");
  // What is larger than a part has a rendezvous, whose small messages took a sixth of the time of
  // those that have none.
  settings.Add("RNDV_THRESH", "256k");
  // UCX looks at TCP in every progress. By itself, a rank without endpoints looks only when a
  // thread of UCX's has told it to, which is too late for UcxPeers::Connect.
  settings.Add("ADAPTIVE_PROGRESS", "n");
  // A part of 8 KiB, its own choice, is a call of the kernel each.
  settings.AddOfTcp("TX_SEG_SIZE", "260k");
  settings.AddOfTcp("RX_SEG_SIZE", "260k");
}

}  // namespace

bool KnowsTcp(const UcxTransportOptions& options) {
  const Environment& environment = options.environment;
  if (options.only_rdma || options.local_address.empty() || environment.contains("UCX_NET_DEVICES"))
    return false;
  const auto chosen = environment.find("UCX_TLS");
  if (chosen == environment.end()) return true;
  const std::vector<absl::string_view> names = absl::StrSplit(chosen->second, ',');
  return std::all_of(names.begin(), names.end(), [](absl::string_view name) {
    constexpr absl::string_view kTcpAndWithinNode[] = {"tcp",   "self", "sm", "shm",
                                                       "posix", "sysv", "cma"};
    return absl::c_linear_search(kTcpAndWithinNode, name);
  });
}

std::vector<UcxSetting> UcxSettings(const UcxVersion& version, const UcxTransportOptions& options,
                                    const std::string& interface) {
  Settings settings(version, options.environment);
  // The shared-memory transports do not report the end of a peer.
  if (options.only_rdma) {
    settings.Add("TLS", "^tcp,sm", "listen to nobody over TCP");
  } else {
    settings.Add("TLS", "^sm", "notice the end of a rank");
  }
  // The default, 20 s, is far above the 2 s in which a lost rank is to be known.
  settings.Add("KEEPALIVE_INTERVAL", "1s");
  if (options.ports.has_value())
    settings.AddOfTcp("PORT_RANGE", options.ports->ToString(), "keep to COORDD_PORT_RANGE");
  if (!interface.empty() && !options.only_rdma)
    settings.Add("NET_DEVICES", interface, "keep to one network interface");
  if (KnowsTcp(options)) AddTcpProtocols(settings);
  return std::move(settings).Take();
}

bool ReachesNobodyOverLoopback(const UcxVersion& version) {
  return version.major == 1 && version.minor == 20;
}

}  // namespace coordd
