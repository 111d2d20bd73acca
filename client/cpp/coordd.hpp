// coordd for C++17 and later: a header over the C interface (coordd.h), which says what each
// collective does, its shapes, threads and errors. It has no ABI of its own: everything here is
// compiled into the program that includes it, which links to libcoordd.so.
//
//     coordd::Worker worker = coordd::Worker::Start();            // options from COORDD_*
//     variables std::vector<float> gradient(256); worker.Allreduce("layer1.weight",
//     coordd::View(gradient), coordd::Op::kAverage);
//
// Errors come in two ways, to choose call by call: a function throws coordd::Error; the same with
// Try in front returns coordd::Expected and throws nothing but std::bad_alloc.
#ifndef COORDD_COORDD_HPP_
#define COORDD_COORDD_HPP_

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordd/coordd.h"

namespace coordd {
inline namespace cpp {

// --- errors ------------------------------------------------------------------------------------

class Error : public std::runtime_error {
 public:
  Error(coordd_status_t code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  coordd_status_t code() const { return code_; }  // COORDD_ABORTED, ...
  const char* code_name() const { return coordd_status_name(code_); }

 private:
  coordd_status_t code_;
};

struct Nothing {};

// A value or an error.
template <typename T = Nothing>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
  Expected(coordd_status_t code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == COORDD_OK; }
  coordd_status_t code() const { return code_; }
  const std::string& message() const { return message_; }
  // Throws Error unless ok().
  T& value() & {
    if (!ok()) throw Error(code_, message_);
    return value_;
  }
  T value() && { return std::move(this->value()); }

 private:
  T value_{};
  coordd_status_t code_ = COORDD_OK;
  std::string message_;
};

namespace internal {

// The error of the call that has just failed on this thread.
template <typename T>
Expected<T> Failure(coordd_status_t code) {
  return Expected<T>(code, coordd_last_error());
}
inline Expected<> Check(coordd_status_t code) {
  return code == COORDD_OK ? Expected<>(Nothing{}) : Failure<Nothing>(code);
}

}  // namespace internal

// --- tensors -----------------------------------------------------------------------------------

// Bits of an IEEE binary16 and of a bfloat16; arithmetic on them is the program's business.
struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

template <typename T>
constexpr coordd_dtype_t DtypeOf() {
  using E = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<E, bool>) return COORDD_BOOL;
  if constexpr (std::is_same_v<E, Float16>) return COORDD_FLOAT16;
  if constexpr (std::is_same_v<E, Bfloat16>) return COORDD_BFLOAT16;
  if constexpr (std::is_same_v<E, float>) return COORDD_FLOAT32;
  if constexpr (std::is_same_v<E, double>) return COORDD_FLOAT64;
  if constexpr (std::is_integral_v<E> && !std::is_same_v<E, bool>) {
    constexpr bool kSigned = std::is_signed_v<E>;
    if constexpr (sizeof(E) == 1) return kSigned ? COORDD_INT8 : COORDD_UINT8;
    if constexpr (sizeof(E) == 2) return kSigned ? COORDD_INT16 : COORDD_UINT16;
    if constexpr (sizeof(E) == 4) return kSigned ? COORDD_INT32 : COORDD_UINT32;
    if constexpr (sizeof(E) == 8) return kSigned ? COORDD_INT64 : COORDD_UINT64;
  }
  return 0;
}

// Elements of somebody else's memory with a shape; dense, row-major.
template <typename T>
class View {
 public:
  static_assert(DtypeOf<T>() != 0, "coordd has no dtype for this element type");

  View() = default;
  View(T* data, std::vector<int64_t> shape) : data_(data), shape_(std::move(shape)) {}
  View(T* data, int64_t size) : View(data, std::vector<int64_t>{size}) {}
  template <typename Allocator>
  View(std::vector<std::remove_const_t<T>, Allocator>& v)  // NOLINT: implicit on purpose
      : View(v.data(), static_cast<int64_t>(v.size())) {}
  template <typename Allocator, typename U = T, typename = std::enable_if_t<std::is_const_v<U>>>
  View(const std::vector<std::remove_const_t<T>, Allocator>& v)  // NOLINT: implicit on purpose
      : View(v.data(), static_cast<int64_t>(v.size())) {}
  // A view to write through can be read through.
  operator View<const T>() const { return {data_, shape_}; }

  T* data() const { return data_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const {
    int64_t n = 1;
    for (const int64_t d : shape_) n *= d;
    return n;
  }
  T& operator[](int64_t i) const { return data_[i]; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size(); }

 private:
  T* data_ = nullptr;
  std::vector<int64_t> shape_ = {0};
};
template <typename T, typename Allocator>
View(std::vector<T, Allocator>&) -> View<T>;
template <typename T, typename Allocator>
View(const std::vector<T, Allocator>&) -> View<const T>;

enum class Op : coordd_op_t {
  kSum = COORDD_SUM,
  kAverage = COORDD_AVERAGE,
  kMin = COORDD_MIN,
  kMax = COORDD_MAX,
  kProduct = COORDD_PRODUCT,
};

struct CallOptions {
  std::chrono::duration<double> timeout{0};  // 0: the worker's
  double prescale_factor = 1.0;
  double postscale_factor = 1.0;
};

// --- works -------------------------------------------------------------------------------------

// The future of one submitted tensor. Movable; dropping it does not stop what it stands for.
class Work {
 public:
  Work() = default;
  explicit Work(coordd_work_t* handle) : handle_(handle) {}
  Work(Work&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    if (this != &other) {
      coordd_work_release(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Work() { coordd_work_release(handle_); }

  // Until it is complete or its own deadline passes.
  Expected<> TryWait() const { return internal::Check(coordd_work_wait(handle_, -1)); }
  void Wait() const { TryWait().value(); }
  // At most `timeout`; DEADLINE_EXCEEDED while it goes on.
  Expected<> TryWaitFor(std::chrono::duration<double> timeout) const {
    return internal::Check(coordd_work_wait(handle_, timeout.count()));
  }
  bool done() const { return coordd_work_poll(handle_) == 1; }

  // Generation, size, output and shape; REQUIRES: it has completed. Valid as long as this object.
  Expected<coordd_result_t> TryResult() const {
    coordd_result_t result = COORDD_RESULT_INIT;
    const coordd_status_t code = coordd_work_result(handle_, &result);
    return code == COORDD_OK ? Expected<coordd_result_t>(result)
                             : internal::Failure<coordd_result_t>(code);
  }
  coordd_result_t Result() const { return TryResult().value(); }

  coordd_work_t* handle() const { return handle_; }

 private:
  coordd_work_t* handle_ = nullptr;
};

// What an allgather, reducescatter or alltoall has brought; the memory lives as long as this
// object.
template <typename T>
class Gathered {
 public:
  Gathered() = default;
  explicit Gathered(Work work) : work_(std::move(work)), result_(work_.Result()) {}

  View<const T> view() const {
    return {static_cast<const T*>(result_.output),
            std::vector<int64_t>(result_.shape, result_.shape + result_.ndim)};
  }
  // alltoall: rows that came from each rank.
  std::vector<int64_t> received_splits() const {
    if (result_.received_splits == nullptr) return {};
    return {result_.received_splits, result_.received_splits + result_.num_received_splits};
  }
  int64_t generation() const { return result_.generation; }

 private:
  Work work_;
  coordd_result_t result_ = COORDD_RESULT_INIT;
};

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
  Worker(Worker&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Worker& operator=(Worker&& other) noexcept {
    if (this != &other) {
      coordd_worker_destroy(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
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
  Expected<> status() const { return internal::Check(coordd_worker_status(handle_)); }
  Expected<> TryShutdown(std::chrono::duration<double> timeout) {
    return internal::Check(coordd_worker_shutdown(handle_, timeout.count()));
  }
  void Shutdown(std::chrono::duration<double> timeout) { TryShutdown(timeout).value(); }
  coordd_worker_t* handle() const { return handle_; }

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

  // The job's key-value store.
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

  coordd_worker_t* handle_ = nullptr;
};

}  // namespace cpp
}  // namespace coordd

#endif  // COORDD_COORDD_HPP_
