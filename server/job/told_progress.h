// What coordd keeps of what a worker tells with its heartbeats: little, however much it tells.
// PURE.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "coordd/v1/types.pb.h"

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
  bool executes = false;  // a batch that was launched has not ended
  // The tensor that has waited longest for other ranks.
  struct Waiting {
    ProcessSetId process_set;
    std::string tensor;
    absl::Duration since;
  };
  std::optional<Waiting> waiting;
};
ToldProgress ProgressOf(const v1::Heartbeat& heartbeat);

// Not thread-safe. What many workers tell alike is kept once.
template <typename Message>
class SharedWord {
 public:
  std::shared_ptr<const Message> Keep(const Message& told) {
    if (last_ == nullptr || last_->SerializeAsString() != told.SerializeAsString())
      last_ = std::make_shared<const Message>(told);
    return last_;
  }

 private:
  std::shared_ptr<const Message> last_;
};

// Of a job's workers: each tells it once in a generation.
struct SharedWords {
  SharedWord<v1::DeviceUse> device_use;
  SharedWord<v1::HostEdges> host_edges;
};

}  // namespace coordd
