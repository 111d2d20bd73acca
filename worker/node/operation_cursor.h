// How far a member is with its operations of one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "worker/node/node_plan.h"

namespace coordd {

// Not thread-safe: a part of NodeCollectiveRun.
//
// Invariant: done_bytes() belong to the present operation, and are fewer than it has, unless it has
// none.
class OperationCursor {
 public:
  void Begin(NodeOperations operations) {
    operations_ = std::move(operations);
    at_ = 0;
    done_bytes_ = 0;
  }
  bool finished() const { return at_ == operations_.size(); }

  // REQUIRES: not finished, here and below.
  const NodeOperation& operation() const { return operations_[at_]; }
  int64_t done_bytes() const { return done_bytes_; }
  int64_t left_bytes() const { return operation().size_bytes - done_bytes_; }
  // More of it is done; whether that was the rest. Then Next follows.
  bool Advance(int64_t bytes) {
    done_bytes_ += bytes;
    return left_bytes() <= 0;
  }
  void Next() {
    ++at_;
    done_bytes_ = 0;
  }

 private:
  NodeOperations operations_;
  size_t at_ = 0;
  int64_t done_bytes_ = 0;
};

}  // namespace coordd
