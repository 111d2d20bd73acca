// Which groups of tensors a lane is in the midst of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker/execute/tensor_job.h"

namespace coordd {

// A group is launched as a whole, over as many batches of its lane as it needs. One thread.
class OpenTensorGroups {
 public:
  // The lane's next batch; whether all groups that have begun are whole behind it.
  bool Take(const std::vector<TensorJob>& tensors) {
    for (const TensorJob& tensor : tensors) {
      const TensorSpec& spec = tensor.spec();
      if (spec.group.empty()) continue;
      const auto group = taken_.try_emplace(spec.group, 0).first;
      if (++group->second == spec.group_size) taken_.erase(group);
    }
    return taken_.empty();
  }

 private:
  absl::flat_hash_map<std::string, int32_t> taken_;  // tensors of each
};

}  // namespace coordd
