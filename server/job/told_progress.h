// What coordd keeps of what a worker tells with its heartbeats: little, however much it tells.
// PURE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "coordd/v1/types.pb.h"
#include "server/job/said_sets.h"

namespace coordd {

// The last one's.
struct ToldProgress {
  int64_t collectives_completed = 0;
  int64_t bytes_reduced = 0;
  // Sequences of the last batches of the set of all ranks.
  struct Batches {
    int64_t launched = 0, completed = 0;
  };
  std::optional<Batches> of_all_ranks;
  int64_t comm_calls = 0;  // that have ended
  bool executes = false;   // a batch that was launched has not ended, or calls of comms have
  // The tensor, or call of a comm, that has waited longest for other ranks.
  struct Waiting {
    ProcessSetId process_set;
    std::string tensor;
    absl::Duration since;
  };
  std::optional<Waiting> waiting;
};
// `before`: of the heartbeat before it.
ToldProgress ProgressOf(const v1::Heartbeat& heartbeat, const ToldProgress& before);

// Not thread-safe. What many workers tell alike is kept once, as long as one of them is there: it
// is compared with a few that were told last.
template <typename Message>
class SharedWord {
 public:
  static constexpr size_t kKnown = 4;

  std::shared_ptr<const Message> Keep(const Message& told) {
    const std::string bytes = told.SerializeAsString();
    const size_t hash = std::hash<std::string>()(bytes);
    for (const Known& known : known_) {
      if (known.hash != hash) continue;
      std::shared_ptr<const Message> message = known.message.lock();
      if (message != nullptr && message->SerializeAsString() == bytes) return message;
    }
    auto kept = std::make_shared<const Message>(told);
    known_[next_++ % kKnown] = {hash, kept};
    return kept;
  }
  // Whether nobody but its worker has told this.
  static bool IsAlone(const std::shared_ptr<const Message>& kept) { return kept.use_count() == 1; }

 private:
  struct Known {
    size_t hash = 0;
    std::weak_ptr<const Message> message;
  };
  std::array<Known, kKnown> known_;
  size_t next_ = 0;
};

// Of a job's workers: each tells it once in a generation.
struct SharedWords {
  SharedWord<v1::DeviceUse> device_use;
  SharedWord<v1::HostEdges> host_edges;
  KeptSets process_sets;  // of those who wait for the next one
};

}  // namespace coordd
