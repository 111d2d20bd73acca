// Collectives without names, for coordd.hpp, which includes it.
#ifndef COORDD_COMM_HPP_
#define COORDD_COMM_HPP_

#include <cstdint>
#include <utility>

#include "coordd/coordd.h"
#include "coordd/tensors.hpp"

namespace coordd {
inline namespace cpp {

// A comm (comm.h); Worker::MakeComm makes it. Movable. One thread at a time makes calls; they run
// in that order. Counts are of elements, as there. Behind ...Async the buffers stay in use until
// the work is complete.
class Comm {
 public:
  Comm() = default;  // of nobody
  explicit Comm(coordd_comm_t* handle) : handle_(handle) {}
  Comm(Comm&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Comm& operator=(Comm&& other) noexcept {
    if (this != &other) {
      coordd_comm_free(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Comm() { coordd_comm_free(handle_); }

  int rank() const { return coordd_comm_rank(handle_); }
  int size() const { return coordd_comm_size(handle_); }

  template <typename T>
  Expected<> TryAllreduce(const T* input, T* output, int64_t count, Op op) {
    return internal::Check(coordd_comm_allreduce(handle_, input, output, count, DtypeOf<T>(),
                                                 static_cast<coordd_op_t>(op)));
  }
  template <typename T>
  void Allreduce(const T* input, T* output, int64_t count, Op op) {
    TryAllreduce(input, output, count, op).value();
  }
  template <typename T>
  Expected<Work> TryAllreduceAsync(const T* input, T* output, int64_t count, Op op) {
    coordd_work_t* work = nullptr;
    return Started(coordd_comm_allreduce_async(handle_, input, output, count, DtypeOf<T>(),
                                               static_cast<coordd_op_t>(op), &work),
                   work);
  }
  template <typename T>
  Work AllreduceAsync(const T* input, T* output, int64_t count, Op op) {
    return TryAllreduceAsync(input, output, count, op).value();
  }
  template <typename T>
  Expected<> TryReducescatter(const T* input, T* output, int64_t count, Op op) {
    return internal::Check(coordd_comm_reducescatter(handle_, input, output, count, DtypeOf<T>(),
                                                     static_cast<coordd_op_t>(op)));
  }
  template <typename T>
  void Reducescatter(const T* input, T* output, int64_t count, Op op) {
    TryReducescatter(input, output, count, op).value();
  }
  template <typename T>
  Expected<Work> TryReducescatterAsync(const T* input, T* output, int64_t count, Op op) {
    coordd_work_t* work = nullptr;
    return Started(coordd_comm_reducescatter_async(handle_, input, output, count, DtypeOf<T>(),
                                                   static_cast<coordd_op_t>(op), &work),
                   work);
  }
  template <typename T>
  Work ReducescatterAsync(const T* input, T* output, int64_t count, Op op) {
    return TryReducescatterAsync(input, output, count, op).value();
  }
  template <typename T>
  Expected<> TryBroadcast(T* buffer, int64_t count, int root) {
    return internal::Check(coordd_comm_broadcast(handle_, buffer, count, DtypeOf<T>(), root));
  }
  template <typename T>
  void Broadcast(T* buffer, int64_t count, int root) {
    TryBroadcast(buffer, count, root).value();
  }
  template <typename T>
  Expected<Work> TryBroadcastAsync(T* buffer, int64_t count, int root) {
    coordd_work_t* work = nullptr;
    return Started(coordd_comm_broadcast_async(handle_, buffer, count, DtypeOf<T>(), root, &work),
                   work);
  }
  template <typename T>
  Work BroadcastAsync(T* buffer, int64_t count, int root) {
    return TryBroadcastAsync(buffer, count, root).value();
  }
  template <typename T>
  Expected<> TryAllgather(const T* input, T* output, int64_t count) {
    return internal::Check(coordd_comm_allgather(handle_, input, output, count, DtypeOf<T>()));
  }
  template <typename T>
  void Allgather(const T* input, T* output, int64_t count) {
    TryAllgather(input, output, count).value();
  }
  template <typename T>
  Expected<Work> TryAllgatherAsync(const T* input, T* output, int64_t count) {
    coordd_work_t* work = nullptr;
    return Started(coordd_comm_allgather_async(handle_, input, output, count, DtypeOf<T>(), &work),
                   work);
  }
  template <typename T>
  Work AllgatherAsync(const T* input, T* output, int64_t count) {
    return TryAllgatherAsync(input, output, count).value();
  }
  template <typename T>
  Expected<> TryAlltoall(const T* input, T* output, int64_t count) {
    return internal::Check(coordd_comm_alltoall(handle_, input, output, count, DtypeOf<T>()));
  }
  template <typename T>
  void Alltoall(const T* input, T* output, int64_t count) {
    TryAlltoall(input, output, count).value();
  }
  template <typename T>
  Expected<Work> TryAlltoallAsync(const T* input, T* output, int64_t count) {
    coordd_work_t* work = nullptr;
    return Started(coordd_comm_alltoall_async(handle_, input, output, count, DtypeOf<T>(), &work),
                   work);
  }
  template <typename T>
  Work AlltoallAsync(const T* input, T* output, int64_t count) {
    return TryAlltoallAsync(input, output, count).value();
  }
  template <typename T>
  Expected<> TryAlltoallv(const T* input, const int64_t* input_counts, T* output,
                          const int64_t* output_counts) {
    return internal::Check(
        coordd_comm_alltoallv(handle_, input, input_counts, output, output_counts, DtypeOf<T>()));
  }
  template <typename T>
  void Alltoallv(const T* input, const int64_t* input_counts, T* output,
                 const int64_t* output_counts) {
    TryAlltoallv(input, input_counts, output, output_counts).value();
  }
  template <typename T>
  Expected<Work> TryAlltoallvAsync(const T* input, const int64_t* input_counts, T* output,
                                   const int64_t* output_counts) {
    coordd_work_t* work = nullptr;
    return Started(coordd_comm_alltoallv_async(handle_, input, input_counts, output, output_counts,
                                               DtypeOf<T>(), &work),
                   work);
  }
  template <typename T>
  Work AlltoallvAsync(const T* input, const int64_t* input_counts, T* output,
                      const int64_t* output_counts) {
    return TryAlltoallvAsync(input, input_counts, output, output_counts).value();
  }
  Expected<> TryBarrier() { return internal::Check(coordd_comm_barrier(handle_)); }
  void Barrier() { TryBarrier().value(); }
  Expected<Work> TryBarrierAsync() {
    coordd_work_t* work = nullptr;
    return Started(coordd_comm_barrier_async(handle_, &work), work);
  }
  Work BarrierAsync() { return TryBarrierAsync().value(); }

  // Messages, which are beside the order of the calls. `source`: also COORDD_ANY_SOURCE.
  template <typename T>
  Expected<Work> TrySendAsync(const T* buffer, int64_t count, int destination, int64_t tag = 0) {
    coordd_work_t* work = nullptr;
    return Started(
        coordd_comm_send_async(handle_, buffer, count, DtypeOf<T>(), destination, tag, &work),
        work);
  }
  template <typename T>
  Work SendAsync(const T* buffer, int64_t count, int destination, int64_t tag = 0) {
    return TrySendAsync(buffer, count, destination, tag).value();
  }
  template <typename T>
  Expected<Work> TryReceiveAsync(T* buffer, int64_t count, int source, int64_t tag = 0) {
    coordd_work_t* work = nullptr;
    return Started(
        coordd_comm_receive_async(handle_, buffer, count, DtypeOf<T>(), source, tag, &work), work);
  }
  template <typename T>
  Work ReceiveAsync(T* buffer, int64_t count, int source, int64_t tag = 0) {
    return TryReceiveAsync(buffer, count, source, tag).value();
  }
  // The program waits for this receive of the comm no longer (coordd_comm_withdraw).
  Expected<> TryWithdraw(const Work& receive) {
    return internal::Check(coordd_comm_withdraw(handle_, receive.handle()));
  }
  void Withdraw(const Work& receive) { TryWithdraw(receive).value(); }

  coordd_comm_t* handle() const { return handle_; }

 private:
  // `work` is read behind the call that has returned `code`.
  static Expected<Work> Started(coordd_status_t code, coordd_work_t* const& work) {
    if (code != COORDD_OK) return internal::Failure<Work>(code);
    return Work(work);
  }

  coordd_comm_t* handle_ = nullptr;
};

}  // namespace cpp
}  // namespace coordd

#endif  // COORDD_COMM_HPP_
