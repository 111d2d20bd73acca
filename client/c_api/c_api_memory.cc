// Memory for collectives.
#include "absl/strings/str_cat.h"
#include "client/c_api/c_api_internal.h"
#include "common/base/status_macros.h"

extern "C" {

coordd_status_t coordd_alloc(coordd_worker_t* worker, int64_t size_bytes, void** memory) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (memory == nullptr) return coordd::NullArgument("memory");
    *memory = nullptr;
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(*memory, worker->worker->AllocateMemory(size_bytes));
    return absl::OkStatus();
  });
}

coordd_status_t coordd_free(coordd_worker_t* worker, void* memory) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    return memory == nullptr ? absl::OkStatus() : worker->worker->FreeMemory(memory);
  });
}

coordd_status_t coordd_register_memfd(coordd_worker_t* worker, int fd, int64_t offset,
                                      int64_t size_bytes, double timeout_seconds, void** memory) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (memory == nullptr) return coordd::NullArgument("memory");
    *memory = nullptr;
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    COORDD_ASSIGN_OR_RETURN(*memory,
                            worker->worker->RegisterMemory({fd, offset, size_bytes}, timeout));
    return absl::OkStatus();
  });
}

coordd_status_t coordd_unregister(coordd_worker_t* worker, void* memory, double timeout_seconds) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (memory == nullptr) return absl::OkStatus();
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->UnregisterMemory(memory, timeout);
  });
}

coordd_status_t coordd_register(coordd_worker_t* worker, const void* memory, int64_t size_bytes) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (memory == nullptr) return coordd::NullArgument("memory");
    return worker->worker->CheckMapped(memory, size_bytes);
  });
}

coordd_status_t coordd_register_device(coordd_worker_t* worker, int32_t process_set,
                                       int32_t device_index, void* memory, int64_t size_bytes,
                                       double timeout_seconds) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (memory == nullptr) return coordd::NullArgument("memory");
    if (size_bytes < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("size_bytes is ", size_bytes, ", expected 1 or more"));
    }
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->RegisterDeviceMemory(
        {coordd::ProcessSetId{process_set}, device_index, memory, size_bytes}, timeout);
  });
}

coordd_status_t coordd_unregister_device(coordd_worker_t* worker, int32_t process_set, void* memory,
                                         double timeout_seconds) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (memory == nullptr) return absl::OkStatus();
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->UnregisterDeviceMemory(coordd::ProcessSetId{process_set}, memory,
                                                  timeout);
  });
}

}  // extern "C"
