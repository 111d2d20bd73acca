// Asks the kernel of another machine for a sign of life. (io)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/owned_fd.h"
#include "common/net/address.h"

namespace coordd {

// A TCP port that belongs to this process and that nobody listens on: whoever connects to it is
// refused by the kernel at once, and knows that packets travel in both directions. Nothing has to
// run here for that.
class ProbePort {
 public:
  // Opens a port at this IP address. `port` 0: any. UNAVAILABLE.
  static absl::StatusOr<ProbePort> Open(const std::string& address, uint16_t port);
  // For the `index`th of `ranks` ranks of a node, at the end of `ports` if there is room beyond
  // what coordd, a relay, a program's MASTER_PORT and the ranks, two each, cannot do without.
  // nullopt: peers do without the probe.
  static std::optional<ProbePort> OpenFor(const std::string& address,
                                          const std::optional<PortRange>& ports, int32_t index,
                                          int32_t ranks);
  const HostPort& address() const { return address_; }

 private:
  OwnedFd socket_;
  HostPort address_;
};

// One attempt to connect to a ProbePort.
class PeerProbe {
 public:
  enum class Answer { kNone, kReached, kUnreachable };

  explicit PeerProbe(const HostPort& port);
  // Does not block. kNone: so far. What this machine has no means to ask counts as reached: it says
  // nothing against the peer.
  Answer Poll();

 private:
  OwnedFd socket_;
  std::optional<Answer> answer_;
};

// How a rank's ProbePort travels behind the address of its transport, and comes off again.
std::string WithProbePort(absl::string_view address, const HostPort& port);
std::optional<HostPort> ProbePortOf(const std::string& address);

}  // namespace coordd
