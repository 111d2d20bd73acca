// A wait on the thread that submits, so short that no order of the ranks' programs can make it a
// deadlock.
#pragma once

#include <atomic>
#include <cstddef>

#include "client/c_api/coordd.h"

namespace coordd::tensorflow {

// One run of a collective, from its call to its end. Any thread.
class UnderWay {
 public:
  UnderWay() : is_alone_(count_.fetch_add(1, std::memory_order_relaxed) == 0) {}
  ~UnderWay() { count_.fetch_sub(1, std::memory_order_relaxed); }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  // Whether no other one of this process was there when it began.
  bool is_alone() const { return is_alone_; }

 private:
  static inline std::atomic<size_t> count_{0};
  const bool is_alone_;
};

// Submits an allreduce. A small one that is alone is driven by this thread for a moment, as by the
// C interface's blocking call: handing it to another thread and back takes longer than the
// exchange. One that other ranks are late for goes on without this thread. COORDD_OK: it is
// complete, and *work is NULL, or *work tells by its callback how it ends. Otherwise nothing was
// submitted.
coordd_status_t SubmitAllreduce(const UnderWay& under_way, const coordd_tensor_t& tensor,
                                coordd_op_t op, const coordd_call_options_t& options,
                                coordd_work_t** work);

}  // namespace coordd::tensorflow
