// Errors, tensors, works and memory: the part of coordd.hpp that knows no worker; it includes this.
#ifndef COORDD_TENSORS_HPP_
#define COORDD_TENSORS_HPP_

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
  const T& value() const& {
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

// Bits of an IEEE binary16, of a bfloat16 and of the two float8; arithmetic on them is the
// program's business.
struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct Float8E4m3fn {
  uint8_t bits;
};
struct Float8E5m2 {
  uint8_t bits;
};

template <typename T>
constexpr coordd_dtype_t DtypeOf() {
  using E = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<E, bool>) return COORDD_BOOL;
  if constexpr (std::is_same_v<E, Float16>) return COORDD_FLOAT16;
  if constexpr (std::is_same_v<E, Bfloat16>) return COORDD_BFLOAT16;
  if constexpr (std::is_same_v<E, Float8E4m3fn>) return COORDD_FLOAT8_E4M3FN;
  if constexpr (std::is_same_v<E, Float8E5m2>) return COORDD_FLOAT8_E5M2;
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
  int process_set = 0;  // of AddProcessSet; 0: all ranks
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

// What an allgather, gather, reducescatter or alltoall has brought; the memory lives as long as
// this object.
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

// --- memory ------------------------------------------------------------------------------------

// Memory of coordd_alloc (memory.h); Worker::Allocate makes it. Movable. Ends before its worker.
template <typename T>
class Memory {
 public:
  Memory() = default;  // nothing
  Memory(coordd_worker_t* worker, T* data, int64_t size)
      : worker_(worker), data_(data), size_(size) {}
  Memory(Memory&& other) noexcept
      : worker_(other.worker_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(worker_, other.worker_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) coordd_free(worker_, data_);
  }

  T* data() const { return data_; }
  int64_t size() const { return size_; }  // elements
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](int64_t i) const { return data_[i]; }
  // Whether the other ranks of the node have it mapped; if not, why.
  Expected<> IsMapped() const {
    return internal::Check(
        coordd_register(worker_, data_, size_ * static_cast<int64_t>(sizeof(T))));
  }

 private:
  coordd_worker_t* worker_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace cpp
}  // namespace coordd

#endif  // COORDD_TENSORS_HPP_
