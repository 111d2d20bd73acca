// coordd for C++17 and later: a header over the C interface (coordd.h), which says what each
// collective does, its shapes, threads and errors. It has no ABI of its own: everything here is
// compiled into the program that includes it, which links to libcoordd.so.
//
//     coordd::Worker worker = coordd::Worker::Start();  // options from the COORDD_ variables
//     std::vector<float> gradient(256);
//     worker.Allreduce("layer1.weight", coordd::View(gradient), coordd::Op::kAverage);
//
// Errors come in two ways, to choose call by call: a function throws coordd::Error; the same with
// Try in front returns coordd::Expected and throws nothing but std::bad_alloc.
#ifndef COORDD_COORDD_HPP_
#define COORDD_COORDD_HPP_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordd/comm.hpp"
#include "coordd/coordd.h"
#include "coordd/tensors.hpp"

namespace coordd {
inline namespace cpp {

// --- the worker --------------------------------------------------------------------------------

// This process as a member of a job. Movable; its end says goodbye.
class Worker {
 public:
  // nullptr: everything from the environment.
  static Expected<Worker> TryStart(const coordd_options_t* options = nullptr) {
    coordd_worker_t* handle = nullptr;
    const coordd_status_t code = coordd_worker_start(options, &handle);
    if (code != COORDD_OK) return internal::Failure<Worker>(code);
    return Worker(handle);
  }
  static Worker Start(const coordd_options_t* options = nullptr) {
    return TryStart(options).value();
  }

  Worker() = default;  // of no job
  Worker(Worker&& other) noexcept
      : entered_(std::move(other.entered_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Worker& operator=(Worker&& other) noexcept {
    if (this != &other) {
      coordd_worker_destroy(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
      entered_ = std::move(other.entered_);
    }
    return *this;
  }
  ~Worker() { coordd_worker_destroy(handle_); }

  int rank() const { return coordd_rank(handle_); }
  int size() const { return coordd_size(handle_); }
  int local_rank() const { return coordd_local_rank(handle_); }
  int local_size() const { return coordd_local_size(handle_); }
  coordd_placement_t placement() const {
    coordd_placement_t placement = COORDD_PLACEMENT_INIT;
    internal::Check(coordd_worker_placement(handle_, &placement)).value();
    return placement;
  }
  std::string metrics_address() const { return coordd_worker_metrics_address(handle_); }
  // By which the other ranks reach what listens on this machine.
  std::string host_address() const {
    char address[COORDD_HOST_ADDRESS_BYTES] = "";
    internal::Check(coordd_worker_host_address(handle_, address, sizeof(address))).value();
    return address;
  }
  Expected<> status() const { return internal::Check(coordd_worker_status(handle_)); }
  // After an error with COORDD_GENERATION_CHANGED: the place in the next generation.
  Expected<coordd_placement_t> TryAwaitGeneration(std::chrono::duration<double> timeout) {
    coordd_placement_t placement = COORDD_PLACEMENT_INIT;
    const coordd_status_t code =
        coordd_worker_await_generation(handle_, timeout.count(), &placement);
    if (code != COORDD_OK) return internal::Failure<coordd_placement_t>(code);
    return placement;
  }
  // With on_failure "continue": has `entered` called for every generation that follows.
  Expected<> TryOnGeneration(std::function<void(const coordd_placement_t&)> entered) {
    entered_.push_back(std::make_unique<Entered>(std::move(entered)));
    return internal::Check(coordd_worker_on_generation(
        handle_,
        [](void* user, const coordd_placement_t* place) { (*static_cast<Entered*>(user))(*place); },
        entered_.back().get()));
  }
  void OnGeneration(std::function<void(const coordd_placement_t&)> entered) {
    TryOnGeneration(std::move(entered)).value();
  }
  // Workers that wait to become members, and, when all ranks have agreed to it, the generation in
  // which they are.
  int32_t newcomers() const { return coordd_worker_newcomers(handle_); }
  // `agreed_in`, with on_failure "continue": the generation of the result that says so.
  Expected<coordd_placement_t> TryChangeMembers(std::chrono::duration<double> timeout,
                                                int64_t agreed_in = 0) {
    coordd_placement_t placement = COORDD_PLACEMENT_INIT;
    const coordd_status_t code =
        coordd_worker_change_members_of(handle_, agreed_in, timeout.count(), &placement);
    if (code != COORDD_OK) return internal::Failure<coordd_placement_t>(code);
    return placement;
  }
  // Of this rank's time to leave that are left; negative: it may stay.
  double drain_seconds() const { return coordd_worker_drain_seconds(handle_); }
  Expected<> TryAskToLeave(std::chrono::duration<double> grace, const std::string& reason) {
    return internal::Check(coordd_worker_ask_to_leave(handle_, grace.count(), reason.c_str()));
  }
  void AskToLeave(std::chrono::duration<double> grace, const std::string& reason) {
    TryAskToLeave(grace, reason).value();
  }
  coordd_placement_t ChangeMembers(std::chrono::duration<double> timeout, int64_t agreed_in = 0) {
    return TryChangeMembers(timeout, agreed_in).value();
  }
  coordd_placement_t AwaitGeneration(std::chrono::duration<double> timeout) {
    return TryAwaitGeneration(timeout).value();
  }
  Expected<> TryShutdown(std::chrono::duration<double> timeout) {
    return internal::Check(coordd_worker_shutdown(handle_, timeout.count()));
  }
  void Shutdown(std::chrono::duration<double> timeout) { TryShutdown(timeout).value(); }
  coordd_worker_t* handle() const { return handle_; }

  // Collectives without names, in the order of the calls. 0 seconds: the worker's timeout.
  Expected<Comm> TryMakeComm(const std::string& name, std::chrono::duration<double> timeout = {},
                             int process_set = 0) {
    coordd_comm_t* comm = nullptr;
    const coordd_status_t code =
        coordd_comm_create(handle_, process_set, name.c_str(), timeout.count(), &comm);
    if (code != COORDD_OK) return internal::Failure<Comm>(code);
    return Comm(comm);
  }
  Comm MakeComm(const std::string& name, std::chrono::duration<double> timeout = {},
                int process_set = 0) {
    return TryMakeComm(name, timeout, process_set).value();
  }

  // `count` elements, at least 1, all zero, of a type that is only bytes.
  template <typename T>
  Expected<Memory<T>> TryAllocate(int64_t count) {
    static_assert(std::is_trivially_copyable<T>::value, "a type that is only bytes");
    void* memory = nullptr;
    const coordd_status_t code =
        coordd_alloc(handle_, count * static_cast<int64_t>(sizeof(T)), &memory);
    if (code != COORDD_OK) return internal::Failure<Memory<T>>(code);
    return Memory<T>(handle_, static_cast<T*>(memory), count);
  }
  template <typename T>
  Memory<T> Allocate(int64_t count) {
    return TryAllocate<T>(count).value();
  }

  // A memfd (coordd_register_memfd): collective over a node's ranks, as is its end: call
  // Unregister.
  Expected<void*> TryRegisterMemfd(int fd, int64_t offset, int64_t size_bytes,
                                   std::chrono::duration<double> timeout = {}) {
    void* memory = nullptr;
    const coordd_status_t code =
        coordd_register_memfd(handle_, fd, offset, size_bytes, timeout.count(), &memory);
    if (code != COORDD_OK) return internal::Failure<void*>(code);
    return memory;
  }
  void* RegisterMemfd(int fd, int64_t offset, int64_t size_bytes,
                      std::chrono::duration<double> timeout = {}) {
    return TryRegisterMemfd(fd, offset, size_bytes, timeout).value();
  }
  Expected<> TryUnregister(void* memory, std::chrono::duration<double> timeout = {}) {
    return internal::Check(coordd_unregister(handle_, memory, timeout.count()));
  }
  void Unregister(void* memory) { TryUnregister(memory).value(); }

  // In place. The view's memory belongs to coordd until the work is done.
  template <typename T>
  Expected<Work> TryAllreduceAsync(const std::string& name, View<T> tensor, Op op,
                                   const CallOptions& options = {}) {
    return Submit<T>(name, tensor, tensor.data(), options, [&](auto* t, auto* o, auto** w) {
      return coordd_allreduce_async(handle_, t, static_cast<coordd_op_t>(op), o, w);
    });
  }
  template <typename T>
  Work AllreduceAsync(const std::string& name, View<T> tensor, Op op,
                      const CallOptions& options = {}) {
    return TryAllreduceAsync(name, std::move(tensor), op, options).value();
  }
  template <typename T>
  void Allreduce(const std::string& name, View<T> tensor, Op op, const CallOptions& options = {}) {
    AllreduceAsync(name, std::move(tensor), op, options).Wait();
  }

  // In place: `tensor` holds the value on `root`, and receives it on the others.
  template <typename T>
  Expected<Work> TryBroadcastAsync(const std::string& name, View<T> tensor, int root,
                                   const CallOptions& options = {}) {
    return Submit<T>(name, tensor, tensor.data(), options, [&](auto* t, auto* o, auto** w) {
      return coordd_broadcast_async(handle_, t, root, o, w);
    });
  }
  template <typename T>
  Work BroadcastAsync(const std::string& name, View<T> tensor, int root,
                      const CallOptions& options = {}) {
    return TryBroadcastAsync(name, std::move(tensor), root, options).value();
  }
  template <typename T>
  void Broadcast(const std::string& name, View<T> tensor, int root,
                 const CallOptions& options = {}) {
    BroadcastAsync(name, std::move(tensor), root, options).Wait();
  }

  // These allocate their result; wait for the work, then read it through Gathered.
  template <typename T>
  Expected<Work> TryAllgatherAsync(const std::string& name, View<T> tensor,
                                   const CallOptions& options = {}) {
    return Submit<T>(name, tensor, nullptr, options, [&](auto* t, auto* o, auto** w) {
      return coordd_allgather_async(handle_, t, o, w);
    });
  }
  template <typename T>
  Gathered<std::remove_const_t<T>> Allgather(const std::string& name, View<T> tensor,
                                             const CallOptions& options = {}) {
    return Finish<T>(TryAllgatherAsync(name, std::move(tensor), options));
  }
  template <typename T>
  Expected<Work> TryReducescatterAsync(const std::string& name, View<T> tensor, Op op,
                                       const CallOptions& options = {}) {
    return Submit<T>(name, tensor, nullptr, options, [&](auto* t, auto* o, auto** w) {
      return coordd_reducescatter_async(handle_, t, static_cast<coordd_op_t>(op), o, w);
    });
  }
  template <typename T>
  Gathered<std::remove_const_t<T>> Reducescatter(const std::string& name, View<T> tensor, Op op,
                                                 const CallOptions& options = {}) {
    return Finish<T>(TryReducescatterAsync(name, std::move(tensor), op, options));
  }
  // `splits` empty: equal parts.
  template <typename T>
  Expected<Work> TryAlltoallAsync(const std::string& name, View<T> tensor,
                                  const std::vector<int64_t>& splits = {},
                                  const CallOptions& options = {}) {
    return Submit<T>(name, tensor, nullptr, options, [&](auto* t, auto* o, auto** w) {
      return coordd_alltoall_async(handle_, t, splits.empty() ? nullptr : splits.data(),
                                   splits.size(), o, w);
    });
  }
  template <typename T>
  Gathered<std::remove_const_t<T>> Alltoall(const std::string& name, View<T> tensor,
                                            const std::vector<int64_t>& splits = {},
                                            const CallOptions& options = {}) {
    return Finish<T>(TryAlltoallAsync(name, std::move(tensor), splits, options));
  }

  // In place on `root`; on the others `tensor` is only read.
  template <typename T>
  Expected<Work> TryReduceAsync(const std::string& name, View<T> tensor, int root, Op op,
                                const CallOptions& options = {}) {
    return Submit<T>(name, tensor, tensor.data(), options, [&](auto* t, auto* o, auto** w) {
      return coordd_reduce_async(handle_, t, root, static_cast<coordd_op_t>(op), o, w);
    });
  }
  template <typename T>
  void Reduce(const std::string& name, View<T> tensor, int root, Op op,
              const CallOptions& options = {}) {
    TryReduceAsync(name, std::move(tensor), root, op, options).value().Wait();
  }
  // Empty elsewhere than on `root`.
  template <typename T>
  Expected<Work> TryGatherAsync(const std::string& name, View<T> tensor, int root,
                                const CallOptions& options = {}) {
    return Submit<T>(name, tensor, nullptr, options, [&](auto* t, auto* o, auto** w) {
      return coordd_gather_async(handle_, t, root, o, w);
    });
  }
  template <typename T>
  Gathered<std::remove_const_t<T>> Gather(const std::string& name, View<T> tensor, int root,
                                          const CallOptions& options = {}) {
    return Finish<T>(TryGatherAsync(name, std::move(tensor), root, options));
  }

  // Between two ranks, under one name.
  template <typename T>
  Expected<Work> TrySendAsync(const std::string& name, View<T> tensor, int destination,
                              const CallOptions& options = {}) {
    return Submit<T>(name, tensor, nullptr, options, [&](auto* t, auto* o, auto** w) {
      return coordd_send_async(handle_, t, destination, o, w);
    });
  }
  template <typename T>
  void Send(const std::string& name, View<T> tensor, int destination,
            const CallOptions& options = {}) {
    TrySendAsync(name, std::move(tensor), destination, options).value().Wait();
  }
  template <typename T>
  Expected<Work> TryReceiveAsync(const std::string& name, View<T> tensor, int source,
                                 const CallOptions& options = {}) {
    return Submit<T>(name, tensor, tensor.data(), options, [&](auto* t, auto* o, auto** w) {
      return coordd_receive_async(handle_, t, source, o, w);
    });
  }
  template <typename T>
  void Receive(const std::string& name, View<T> tensor, int source,
               const CallOptions& options = {}) {
    TryReceiveAsync(name, std::move(tensor), source, options).value().Wait();
  }

  // Every rank calls these alike; they block until the last one has. The number of the set.
  Expected<int> TryAddProcessSet(const std::vector<int32_t>& ranks,
                                 std::chrono::duration<double> timeout = {}) {
    int32_t set = 0;
    const coordd_status_t code =
        coordd_process_set_add(handle_, ranks.data(), ranks.size(), timeout.count(), &set);
    return code == COORDD_OK ? Expected<int>(set) : internal::Failure<int>(code);
  }
  int AddProcessSet(const std::vector<int32_t>& ranks, std::chrono::duration<double> timeout = {}) {
    return TryAddProcessSet(ranks, timeout).value();
  }
  Expected<> TryRemoveProcessSet(int set, std::chrono::duration<double> timeout = {}) {
    return internal::Check(coordd_process_set_remove(handle_, set, timeout.count()));
  }
  void RemoveProcessSet(int set, std::chrono::duration<double> timeout = {}) {
    TryRemoveProcessSet(set, timeout).value();
  }
  std::vector<int32_t> ProcessSetRanks(int set) const {
    std::vector<int32_t> ranks(static_cast<size_t>(size()));
    size_t count = 0;
    internal::Check(coordd_process_set_ranks(handle_, set, ranks.data(), ranks.size(), &count))
        .value();
    ranks.resize(count);
    return ranks;
  }

  // This rank has no more data; the rank that joined last.
  Expected<int> TryJoin(const CallOptions& options = {}) {
    const coordd_call_options_t call = Options(options);
    int32_t last = -1;
    const coordd_status_t code = coordd_join(handle_, &call, &last);
    return code == COORDD_OK ? Expected<int>(last) : internal::Failure<int>(code);
  }
  int Join(const CallOptions& options = {}) { return TryJoin(options).value(); }

  Expected<> TryBarrier() { return internal::Check(coordd_barrier(handle_, nullptr, nullptr)); }
  void Barrier() { TryBarrier().value(); }

  // All of them in one generation, or none; in place.
  template <typename T>
  Expected<std::vector<Work>> TryGroupedAllreduceAsync(
      const std::string& group, const std::vector<std::pair<std::string, View<T>>>& tensors, Op op,
      const CallOptions& options = {}) {
    std::vector<coordd_tensor_t> list;
    for (const auto& [name, view] : tensors) list.push_back(Tensor<T>(name, view, view.data()));
    const coordd_call_options_t call = Options(options);
    std::vector<coordd_work_t*> handles(list.size(), nullptr);
    const coordd_status_t code =
        coordd_grouped_allreduce_async(handle_, group.c_str(), list.data(), list.size(),
                                       static_cast<coordd_op_t>(op), &call, handles.data());
    if (code != COORDD_OK) return internal::Failure<std::vector<Work>>(code);
    std::vector<Work> works;
    works.reserve(handles.size());
    for (coordd_work_t* handle : handles) works.emplace_back(handle);
    return works;
  }
  template <typename T>
  void GroupedAllreduce(const std::string& group,
                        const std::vector<std::pair<std::string, View<T>>>& tensors, Op op,
                        const CallOptions& options = {}) {
    const std::vector<Work> works = TryGroupedAllreduceAsync(group, tensors, op, options).value();
    for (const Work& work : works) work.Wait();
  }

  // The job's key-value store; store.hpp has the rest of it.
  Expected<> TryStoreSet(const std::string& key, const std::string& value,
                         std::chrono::duration<double> timeout) {
    return internal::Check(
        coordd_store_set(handle_, key.c_str(), value.data(), value.size(), timeout.count()));
  }
  Expected<std::string> TryStoreGet(const std::string& key, std::chrono::duration<double> timeout) {
    std::string value(size_t{64} << 10, '\0');  // no value is larger
    size_t size = 0;
    const coordd_status_t code =
        coordd_store_get(handle_, key.c_str(), value.data(), value.size(), &size, timeout.count());
    if (code != COORDD_OK) return internal::Failure<std::string>(code);
    value.resize(size);
    return value;
  }

 private:
  using Entered = std::function<void(const coordd_placement_t&)>;
  explicit Worker(coordd_worker_t* handle) : handle_(handle) {}

  template <typename T>
  static coordd_tensor_t Tensor(const std::string& name, const View<T>& view, void* output) {
    coordd_tensor_t tensor = COORDD_TENSOR_INIT;
    tensor.name = name.c_str();
    tensor.input = view.data();
    tensor.output = output;
    tensor.output_capacity_bytes = output == nullptr ? 0 : view.size() * int64_t{sizeof(T)};
    tensor.shape = view.shape().data();
    tensor.ndim = static_cast<int32_t>(view.shape().size());
    tensor.dtype = DtypeOf<T>();
    return tensor;
  }
  static coordd_call_options_t Options(const CallOptions& options) {
    coordd_call_options_t call = COORDD_CALL_OPTIONS_INIT;
    call.timeout_seconds = options.timeout.count();
    call.prescale_factor = options.prescale_factor;
    call.postscale_factor = options.postscale_factor;
    call.process_set = options.process_set;
    return call;
  }
  template <typename T, typename F>
  Expected<Work> Submit(const std::string& name, const View<T>& view, void* output,
                        const CallOptions& options, F submit) {
    const coordd_tensor_t tensor = Tensor<T>(name, view, output);
    const coordd_call_options_t call = Options(options);
    coordd_work_t* work = nullptr;
    const coordd_status_t code = submit(&tensor, &call, &work);
    if (code != COORDD_OK) return internal::Failure<Work>(code);
    return Work(work);
  }
  template <typename T>
  static Gathered<std::remove_const_t<T>> Finish(Expected<Work> submitted) {
    Work work = std::move(submitted).value();
    work.Wait();
    return Gathered<std::remove_const_t<T>>(std::move(work));
  }

  // Called until the worker has ended.
  std::vector<std::unique_ptr<Entered>> entered_;
  coordd_worker_t* handle_ = nullptr;
};

}  // namespace cpp
}  // namespace coordd

#endif  // COORDD_COORDD_HPP_
