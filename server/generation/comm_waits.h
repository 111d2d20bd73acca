// Calls of comms in which ranks wait, as their heartbeats tell: coordd hears of nothing else of
// these calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/process_sets.h"
#include "server/generation/readiness_table.h"
#include "server/generation/wait_ages.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe.
class CommWaits {
 public:
  // What is told of more calls than that at a time is not kept.
  static constexpr size_t kMaxCalls = 4096;
  // As of a stalled tensor.
  static constexpr size_t kNamedRanks = 64;

  explicit CommWaits(const ProcessSets& sets) : sets_(sets) {}  // outlive it
  CommWaits(const CommWaits&) = delete;
  CommWaits& operator=(const CommWaits&) = delete;

  bool empty() const { return by_rank_.empty(); }
  // All that `rank` waits in: in what else it waited it has gone on. REQUIRES: valid.
  void Note(Rank rank, const google::protobuf::RepeatedPtrField<v1::CommWait>& waits,
            absl::Time now);

  // Waited in since `now - age` or earlier, the oldest first, under names like "comm torch:
  // allreduce number 17"; each once.
  std::vector<PendingTensor> NewlyStalled(absl::Time now, absl::Duration age);
  // Likewise, at most `limit`, again and again.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age, size_t limit) const;
  int64_t stalled() const { return ages_.told(); }  // told by NewlyStalled, and still waited in
  // When NewlyStalled finds something. InfiniteFuture: never, as things are.
  absl::Time NextStall(absl::Duration warning) const { return ages_.oldest_untold() + warning; }
  // That in which `rank` has waited longest.
  std::optional<PendingTensor> LongestOf(Rank rank) const;

  void ForgetAll();  // nobody is told
  void Forgive(absl::Duration gap);

 private:
  using Key = std::pair<std::string, std::string>;  // comm, call
  struct Call {
    absl::Time since;
    absl::Duration waited;  // as the last one has told
    std::set<Rank> in;
    std::vector<Rank> missing;                  // as the last one has told that could
    std::optional<ProcessSetId> of;             // where who is not in is missing
    mutable std::optional<PendingTensor> text;  // Describe, while it is so
  };
  using Calls = std::map<Key, Call>;

  void Enter(Rank rank, const v1::CommWait& wait, absl::Time now);
  void Leave(Rank rank, const Key& key);
  const PendingTensor& Describe(const Key& key) const;
  std::vector<PendingTensor> DescribeAll(const std::vector<Key>& keys) const;

  const ProcessSets& sets_;
  Calls calls_;
  std::map<Rank, std::vector<Key>> by_rank_;
  WaitAges<Key> ages_;  // by Call::since
};

}  // namespace coordd
