// A peer that a rank waits for, and whether the network still reaches it. (io)
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/net/address.h"
#include "worker/transport/peers/peer_probe.h"
#include "worker/transport/peers/peer_watch.h"

namespace coordd {

// Asks the peer's kernel when PeerWatch says so. One thread uses it.
class WatchedPeer {
 public:
  // What a transport knows of the peer since the last look.
  struct News {
    bool moved = false;     // something has come or gone
    bool waits = false;     // this rank waits for the peer
    bool connects = false;  // the connection to it is still being made
  };

  // Where it can be asked; none: nobody can, and Look never finds it silent.
  void AskAt(std::optional<HostPort> port) { port_ = std::move(port); }
  // One turn, at `now`, some ten times a second. Does not block. Why the peer is to be given up;
  // nullopt: it is not.
  std::optional<std::string> Look(const News& news, absl::Time now);

 private:
  std::optional<HostPort> port_;
  std::optional<PeerProbe> probe_;  // the one under way
  PeerWatch watch_;
};

}  // namespace coordd
