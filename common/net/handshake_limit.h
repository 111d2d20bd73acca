// How many TLS handshakes an address may begin: each costs a server more than whoever begins it.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace coordd {

// PURE. Not thread-safe.
class HandshakeLimit {
 public:
  static constexpr int kPerSecond = 50;
  static constexpr int kAtOnce = 100;  // connections that are open, their handshakes begun
  // Whose handshakes of this second are counted one by one; those of further addresses are counted
  // together, as one address.
  static constexpr size_t kAddressesMax = 4096;

  // Whether `block` (PeerAddress) may begin one more, on a connection that is open until End.
  bool Begin(const std::string& block, absl::Time now);
  void End(const std::string& block);

  // Of how many addresses it knows something.
  size_t addresses() const { return begun_.size() + open_.size(); }

 private:
  absl::Time second_ = absl::InfinitePast();  // when the one that is counted began
  std::map<std::string, int> begun_;          // within it
  std::map<std::string, int> open_;           // never 0
};

}  // namespace coordd
