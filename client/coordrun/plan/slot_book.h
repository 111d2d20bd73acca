// Which hosts a run with --host-discovery-script has, and which worker stands for which slot of
// which. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/launch/host_list.h"

namespace coordd {

// A worker is named by the index of its slot, for good: a host that comes back finds its own.
struct Slot {
  std::string host, user;
  int32_t local_rank = 0;
  int32_t local_size = 1;  // slots of its host
  bool wanted = false;     // its host is there, and --max-np has room for it
  bool drained = false;    // its worker was asked to leave: not used until its host comes anew
};

struct SlotChange {
  std::vector<int32_t> start;          // slots that are wanted from now on
  std::vector<int32_t> end;            // slots that were
  std::vector<std::string> sentences;  // what has happened, for people
};

// Not thread-safe: one owner.
class SlotBook {
 public:
  // `most`: --max-np; 0: no limit.
  explicit SlotBook(int32_t most) : most_(most) {}

  // `hosts`: all that there are now, in the order in which they are to be filled. Whoever is there
  // stays as long as its slot does.
  SlotChange Update(absl::Span<const HostSlots> hosts);

  // The worker of this slot was asked to leave, and has.
  void Drained(int32_t worker);

  const std::vector<Slot>& slots() const { return slots_; }
  int32_t wanted() const;

 private:
  int32_t IndexOf(const HostSlots& host, int32_t local_rank);

  const int32_t most_;
  std::vector<Slot> slots_;
};

// What a discovery script prints: "host" or "host:slots" a line, as an item of -H, where a host
// alone has `slots_per_host`. Comments begin with '#'; hosts without slots, and those that were
// named before, are left out. INVALID_ARGUMENT: "the line 'x': what is expected".
absl::StatusOr<std::vector<HostSlots>> ParseDiscovered(const std::string& text,
                                                       int32_t slots_per_host);
int64_t SlotsOf(absl::Span<const HostSlots> hosts);

}  // namespace coordd
