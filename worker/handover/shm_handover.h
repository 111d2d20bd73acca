// How the ranks of a node get each other's shared memory. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/owned_fd.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"

namespace coordd {

// A rank whose memory has been handed over, and by which its end is seen.
struct ShmPeer {
  Rank rank;
  std::string note;  // what it says beside it
  OwnedFd segment;
  OwnedFd socket;   // ends with the peer, unless a fork of it holds it open
  OwnedFd process;  // pidfd; invalid where the kernel or a pid namespace hides the process
};

struct ShmHandoverOptions {
  Rank self;
  std::vector<Rank> others;                    // of the node, ascending
  int segment_fd = -1;                         // this rank's memory; an empty one if it has none
  const std::atomic<bool>* aborted = nullptr;  // checked ten times a second
  // What is handed over: a rank has one handover of each kind at a time.
  absl::string_view key_prefix = "shm";
  std::string note = {};  // a hundred bytes at most
};

// Descriptors travel as ancillary data of a Unix socket with an abstract name, so that no file
// stays behind, however the process ends. Name and a 128-bit secret are random and travel in
// `store` under "shm/RANK" (or the other prefix); on a node of more than a few ranks the first one
// collects them under "shm/node/RANK", so that each makes a handful of calls. The higher rank of a
// pair connects and shows the lower one's secret; both sides check that the other runs as the same
// user. Strangers are turned away without ending the handover, other users' processes as soon as
// they connect; a rank that was turned away connects again, until nobody listens at that name.
//
// Returns one peer per rank of `others`, in their order. DEADLINE_EXCEEDED: names the ranks that
// did not show up. ABORTED. UNAVAILABLE: what could not be opened, or PeerLost.
absl::StatusOr<std::vector<ShmPeer>> HandOverSegments(const ShmHandoverOptions& options,
                                                      Store& store, Clock& clock,
                                                      absl::Time deadline);

// A rank that cannot use what was handed over, and why: for people.
struct ShmObjection {
  Rank rank;
  std::string why;
};
// Behind a handover: each rank says to all others whether it can use what it has got, empty if it
// can, and hears them all. Returns the objection of the lowest rank that has one, the same on every
// rank; nullopt: nobody has one. Statuses: as HandOverSegments.
absl::StatusOr<std::optional<ShmObjection>> ObjectionOfAny(const ShmHandoverOptions& options,
                                                           absl::Span<const ShmPeer> peers,
                                                           absl::string_view objection,
                                                           Clock& clock, absl::Time deadline);

}  // namespace coordd
