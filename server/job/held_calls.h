// Calls of a store that is not whole yet.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/model/effects.h"

namespace coordd {

// PURE. Not thread-safe. Kept in the order of their ids, which is that of their arrival.
class HeldCalls {
 public:
  struct Bounds {
    int64_t calls = 1 << 16;
    int64_t bytes = int64_t{64} << 20;  // of keys and values
  };
  explicit HeldCalls(const Bounds& bounds) : bounds_(bounds) {}

  // RESOURCE_EXHAUSTED: there are too many, or they are too large.
  absl::Status Hold(absl::string_view job, const StoreCall& call);
  void Cancel(CallId call);
  StoreCall TakeFirst();  // REQUIRES: there is one
  const std::map<CallId, StoreCall>& calls() const { return calls_; }

 private:
  const Bounds bounds_;
  std::map<CallId, StoreCall> calls_;
  int64_t bytes_ = 0;
};

}  // namespace coordd
