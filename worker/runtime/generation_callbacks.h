// What a program wants to be called with when it is in the next generation.
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "worker/api/worker.h"

namespace coordd {

// Not thread-safe: guarded by what guards its owner, but for the calls themselves.
//
// Invariant: one thread at most is in the callbacks.
class GenerationCallbacks {
 public:
  using Shared = std::vector<std::shared_ptr<const GenerationCallback>>;

  void Add(GenerationCallback entered) {
    callbacks_.push_back(std::make_shared<const GenerationCallback>(std::move(entered)));
  }
  void Clear() { callbacks_.clear(); }
  // This thread calls what is returned, and then says End.
  Shared Begin() {
    caller_ = std::this_thread::get_id();
    return callbacks_;
  }
  void End() { caller_.reset(); }
  // Whether no other thread than this one is in a callback.
  bool idle() const { return !caller_.has_value() || caller_ == std::this_thread::get_id(); }

 private:
  Shared callbacks_;
  std::optional<std::thread::id> caller_;
};

}  // namespace coordd
