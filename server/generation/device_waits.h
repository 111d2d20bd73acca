// Batches that do not end on the ranks' devices, as their heartbeats tell: what stands where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/process_sets.h"
#include "server/generation/readiness_table.h"
#include "server/generation/wait_ages.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe.
//
// A batch stands when it is the first one that a rank tells of: what is behind it waits for it. A
// rank that does not tell of it has ended it, or has not come as far, which its positions on lanes
// say.
class DeviceWaits {
 public:
  // What is told of more at a time is not kept.
  static constexpr size_t kMaxBatches = 4096;
  static constexpr size_t kMaxPositions = size_t{1} << 18;  // of ranks on lanes: 16 MiB
  // As of a stalled tensor.
  static constexpr size_t kNamedRanks = 64;

  explicit DeviceWaits(const ProcessSets& sets) : sets_(sets) {}  // outlive it
  DeviceWaits(const DeviceWaits&) = delete;
  DeviceWaits& operator=(const DeviceWaits&) = delete;

  bool empty() const { return batches_.empty(); }
  // All that `rank` tells of: what else it told of has ended there. `place`: its device and host,
  // for people. REQUIRES: valid.
  void Note(Rank rank, const v1::Heartbeat& heartbeat, absl::string_view place, absl::Time now);

  // Standing since `now - age` or earlier, the oldest first, under names like "allreduce grad/3
  // (+41)"; each once. Ready are ranks whose device has begun it.
  std::vector<PendingTensor> NewlyStalled(absl::Time now, absl::Duration age);
  // Likewise, at most `limit`, again and again.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age, size_t limit) const;
  int64_t stalled() const { return ages_.told(); }  // told by NewlyStalled, and still standing
  // When NewlyStalled finds something. InfiniteFuture: never, as things are.
  absl::Time NextStall(absl::Duration warning) const { return ages_.oldest_untold() + warning; }
  // What stands on the device of `rank`, a phrase; empty: nothing that it tells of.
  std::string StandOf(Rank rank) const;

  void ForgetAll();  // nobody is told
  void Forgive(absl::Duration gap);

 private:
  using Key = std::pair<int32_t, int64_t>;  // lane, sequence
  struct Batch {
    std::string title;
    ProcessSetId process_set;
    absl::Time since;
    std::map<Rank, v1::DeviceStage> stages;
    std::set<Rank> first_of;                    // whose first one it is
    bool listed = false;                        // in ages_
    mutable std::optional<PendingTensor> text;  // Describe, while it is so
  };
  struct Position {
    int64_t launched = 0, completed = 0;
  };
  struct Lane {
    int64_t batches = 0;
    std::map<Rank, Position> positions;
  };

  void Enter(Rank rank, const v1::DeviceBatch& told, bool is_first, absl::Time now);
  void Leave(Rank rank, const Key& key);
  void List(const Key& key, Batch& batch);
  void Drop(const Key& key);
  void NotePositions(Rank rank, const v1::Heartbeat& heartbeat);
  absl::string_view PhraseOf(const Key& key, const Batch& batch, Rank rank, bool* has_begun) const;
  std::string PlacesOf(const std::vector<Rank>& ranks) const;
  const PendingTensor& Describe(const Key& key) const;
  std::vector<PendingTensor> DescribeAll(const std::vector<Key>& keys) const;

  const ProcessSets& sets_;
  std::map<Key, Batch> batches_;
  std::map<Rank, std::vector<Key>> by_rank_;  // of each the first one first
  std::map<int32_t, Lane> lanes_;             // that have batches
  size_t positions_ = 0;
  std::map<Rank, std::string> places_;
  WaitAges<Key> ages_;  // by Batch::since
};

}  // namespace coordd
