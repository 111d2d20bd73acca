// A shared library opened at run time: how coordd uses what a machine may lack. (io)
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace coordd {

// Movable. What was opened stays loaded to the end of the process: NCCL and CUDA's driver leave
// memory and threads behind when they are unloaded.
class DynamicLibrary {
 public:
  // `name`: a file name for the loader's search or a path. NOT_FOUND: the loader's own sentence.
  static absl::StatusOr<DynamicLibrary> Open(const std::string& name);
  // Opens only a copy that this process has loaded already. NOT_FOUND: there is none.
  static absl::StatusOr<DynamicLibrary> OpenLoaded(const std::string& name);

  DynamicLibrary(DynamicLibrary&& other) noexcept : handle_(other.handle_) {
    other.handle_ = nullptr;
  }
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~DynamicLibrary();

  // nullptr: it has no such symbol. REQUIRES: T is the function's type.
  template <typename T>
  T* Function(const char* symbol) const {
    return reinterpret_cast<T*>(Symbol(symbol));
  }

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}
  static absl::StatusOr<DynamicLibrary> OpenWith(const std::string& name, int flags);
  void* Symbol(const char* symbol) const;

  void* handle_;
};

}  // namespace coordd
