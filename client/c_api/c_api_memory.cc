// Memory for collectives.
#include "absl/strings/str_cat.h"
#include "client/c_api/c_api_internal.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/api/device_memory.h"

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

coordd_status_t coordd_alloc_device(int32_t device_index, int64_t size_bytes, void** memory) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (memory == nullptr) return coordd::NullArgument("memory");
    *memory = nullptr;
    COORDD_ASSIGN_OR_RETURN(*memory, coordd::AllocateDeviceMemory(device_index, size_bytes));
    return absl::OkStatus();
  });
}

coordd_status_t coordd_free_device(void* memory) {
  return coordd::AtBorder([&]() -> absl::Status {
    return memory == nullptr ? absl::OkStatus() : coordd::FreeDeviceMemory(memory);
  });
}

void* coordd_torch_alloc(ptrdiff_t size_bytes, int device_index, void*) {
  void* memory = nullptr;
  if (coordd_alloc_device(device_index, size_bytes, &memory) != COORDD_OK)
    COORDD_LOG(kWarning, "no memory for torch: ", coordd_last_error());
  return memory;
}

void coordd_torch_free(void* memory, ptrdiff_t, int, void*) {
  if (coordd_free_device(memory) != COORDD_OK) COORDD_LOG(kWarning, coordd_last_error());
}

}  // extern "C"
