// Which hosts a run with --host-discovery-script has, and which worker stands for which slot of
// which. PURE
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
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
  std::vector<int32_t> start;  // slots that are wanted from now on
  std::vector<int32_t> end;    // slots that were
};

// Not thread-safe: one owner.
class SlotBook {
 public:
  // `most`: --max-np; 0: no limit.
  explicit SlotBook(int32_t most) : most_(most) {}

  // `hosts`: all that there are now, in the order in which they are to be filled. Whoever is there
  // stays as long as its host has a slot for it: of a host with fewer slots than before the drained
  // ones go first, then those of `empty`, in which nobody is, then the last ones.
  SlotChange Update(absl::Span<const HostSlots> hosts, const std::set<int32_t>& empty = {});

  // How many of `hosts`' slots Update would leave drained: nobody is started there.
  int64_t DrainedOf(absl::Span<const HostSlots> hosts) const;

  // The number on its host that a worker gets which is started in this slot now: the slot's own, or
  // one that is free where the host has fewer slots by now.
  int32_t LocalRankOf(int32_t worker) const;

  // The worker of this slot was asked to leave, and has.
  void Drained(int32_t worker);

  const std::vector<Slot>& slots() const { return slots_; }
  int32_t wanted() const;

 private:
  int32_t IndexOf(const HostSlots& host, int32_t local_rank);
  // The slots of this host that are wanted, or that are drained.
  std::vector<int32_t> SlotsOn(const std::string& host, bool drained) const;
  void Shrink(const std::string& host, int32_t room, const std::set<int32_t>& empty,
              SlotChange* change);

  const int32_t most_;
  std::vector<Slot> slots_;
};

// "host b is there: slot 2", "host a is gone: slot 1 (pid 4711)", "host a has fewer slots: ...";
// for people, a sentence for each host of `change`, which Update has given. `pids`: of the slots'
// workers; 0: not known.
std::vector<std::string> SlotSentences(const SlotChange& change, absl::Span<const Slot> slots,
                                       absl::Span<const HostSlots> hosts,
                                       absl::Span<const pid_t> pids);

// What a discovery script prints: "host" or "host:slots" a line, as an item of -H, where a host
// alone has `slots_per_host`. Comments begin with '#'; hosts without slots, and those that were
// named before, are left out. INVALID_ARGUMENT: "the line 'x': what is expected".
absl::StatusOr<std::vector<HostSlots>> ParseDiscovered(const std::string& text,
                                                       int32_t slots_per_host);
int64_t SlotsOf(absl::Span<const HostSlots> hosts);

}  // namespace coordd
