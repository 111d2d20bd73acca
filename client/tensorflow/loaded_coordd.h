// The libcoordd.so that the process has loaded, and its worker. This library is not linked with it:
// it would bring a second copy, which knows nothing of the first one's worker.
#pragma once

#include <string>

#include "client/c_api/coordd.h"

namespace coordd::tensorflow {

#define COORDD_TF_CALLS(X)              \
  X(coordd_allreduce_async)             \
  X(coordd_grouped_allreduce_async)     \
  X(coordd_allreduce)                   \
  X(coordd_allreduce_for)               \
  X(coordd_grouped_allreduce)           \
  X(coordd_allgather_async)             \
  X(coordd_grouped_allgather_async)     \
  X(coordd_broadcast_async)             \
  X(coordd_alltoall_async)              \
  X(coordd_reducescatter_async)         \
  X(coordd_grouped_reducescatter_async) \
  X(coordd_join_async)                  \
  X(coordd_barrier_async)               \
  X(coordd_rank)                        \
  X(coordd_size)                        \
  X(coordd_local_rank)                  \
  X(coordd_local_size)                  \
  X(coordd_process_set_ranks)           \
  X(coordd_work_on_complete)            \
  X(coordd_work_result)                 \
  X(coordd_work_release)                \
  X(coordd_work_wait)                   \
  X(coordd_work_wait_on_stream)         \
  X(coordd_last_error)

struct CoorddCalls {
#define COORDD_TF_MEMBER(name) decltype(&::name) name = nullptr;
  COORDD_TF_CALLS(COORDD_TF_MEMBER)
#undef COORDD_TF_MEMBER
};

// REQUIRES: UseCoordd() has returned "".
const CoorddCalls& Coordd();

// `handle`: dlopen's, of libcoordd.so. Empty: all functions are there; else one sentence.
std::string UseCoordd(void* handle);

// The worker of init(); NULL: there is none. Any thread.
coordd_worker_t* CurrentWorker();
void SetCurrentWorker(coordd_worker_t* worker);

// What a collective says without a worker.
inline constexpr char kNotInitialised[] = "coordd is not initialised: call init() first";

}  // namespace coordd::tensorflow
