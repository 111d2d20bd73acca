// A group of tensors that a program submits again and again: a training step's price per tensor is
// then that of its addresses.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/types.h"
#include "worker/base/shared_spec.h"

namespace coordd {

// Thread-safe. Never changes, but for the note that its specs are good.
class PreparedGroup {
 public:
  // `name` and the specs' names are equal on all ranks; the specs' `group` is filled in here. What
  // is wrong with them Worker::SubmitGroup says.
  PreparedGroup(std::string name, std::vector<TensorSpec> specs) : name_(std::move(name)) {
    specs_.reserve(specs.size());
    const int32_t count = static_cast<int32_t>(specs.size());
    for (TensorSpec& spec : specs) {
      spec.group = name_;
      spec.group_size = count;
      specs_.emplace_back(std::move(spec));
    }
  }

  const std::string& name() const { return name_; }
  const std::vector<SharedSpec>& specs() const { return specs_; }

  // Whether the specs have been found good for this rank in this generation: the next one has other
  // ranks and sets.
  bool IsGoodIn(Generation generation) const {
    return good_in_.load(std::memory_order_relaxed) == ToInt(generation);
  }
  void SetGoodIn(Generation generation) {
    good_in_.store(ToInt(generation), std::memory_order_relaxed);
  }

 private:
  // Constant after construction.
  std::string name_;
  std::vector<SharedSpec> specs_;

  std::atomic<int64_t> good_in_ = -1;  // no generation
};

}  // namespace coordd
