// How many TLS handshakes an address may begin and leave: each costs a server more than whoever
// begins it. Who goes through with them may have more, since they cost him as much.
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
  static constexpr int kFinishedPerSecond = 500;
  static constexpr int kAtOnce = 100;  // that are begun and not over
  // Whose handshakes of this second are counted one by one; those of further addresses are counted
  // together, as one address.
  static constexpr size_t kAddressesMax = 4096;

  // Whether `block` (PeerAddress) may begin one more, which is over with Finished or Left.
  bool Begin(const std::string& block, absl::Time now);
  void Finished(const std::string& block);
  void Left(const std::string& block);

  // Of how many addresses it knows something.
  size_t addresses() const { return begun_.size() + open_.size(); }

 private:
  absl::Time second_ = absl::InfinitePast();  // when the one that is counted began
  struct Count {
    int begun = 0, finished = 0;
  };
  Count& CountOf(const std::string& block);

  std::map<std::string, Count> begun_;  // within it
  std::map<std::string, int> open_;     // never 0
};

}  // namespace coordd
