// Ranges on a profiler's time line: NVTX, version 3, as its documentation gives it, in our words,
// so that no vendor header is needed to build. tests/worker/gpu/cuda/nvtx_abi_test.cc compares with
// the vendor's where there is one. (io)
//
// NVTX is no library: a profiler (Nsight Systems, for one) names a library of its own in
// NVTX_INJECTION64_PATH, and who wants to be seen opens it, calls InitializeInjectionNvtx2 with a
// function that gives out tables, and finds its functions written there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/protocol/types.h"

namespace coordd {

inline constexpr char kNvtxVariable[] = "NVTX_INJECTION64_PATH";
inline constexpr char kNvtxEntry[] = "InitializeInjectionNvtx2";

using NvtxDomain = struct NvtxDomainHandle*;
struct NvtxEvent {
  uint16_t version = 3;
  uint16_t size = 48;
  uint32_t category = 0;
  int32_t color_type = 0;
  uint32_t color = 0;
  int32_t payload_type = 0;
  int32_t reserved = 0;
  uint64_t payload = 0;
  int32_t message_type = 0;
  const char* message = nullptr;
};
inline constexpr int32_t kNvtxPayloadUint64 = 1;
inline constexpr int32_t kNvtxMessageAscii = 1;

// Tables by module: of each function the address of the pointer through which it is called.
using NvtxFunction = void (*)();
using NvtxTable = NvtxFunction**;
struct NvtxCallbacks {
  size_t size = 0;
  int (*get_table)(int module, NvtxTable* table, unsigned* entries) = nullptr;
};
struct NvtxVersion {
  size_t size = 0;
  uint32_t version = 3;
  uint32_t reserved = 0;
  void (*set_injection_version)(uint32_t version) = nullptr;
};
inline constexpr uint32_t kNvtxCallbacksTable = 1;
inline constexpr uint32_t kNvtxVersionTable = 3;
using NvtxExportTable = const void* (*)(uint32_t id);
using NvtxInitialize = int (*)(NvtxExportTable tables);

// Core, CUDA, OpenCL, CUDA's runtime, domains, synchronisation; with the entries that each has.
inline constexpr int kNvtxModules[] = {1, 2, 3, 4, 5, 6};
inline constexpr unsigned kNvtxEntries[] = {16, 9, 15, 7, 16, 7};
inline constexpr int kNvtxDomains = 5;
inline constexpr unsigned kNvtxRangePush = 4;
inline constexpr unsigned kNvtxRangePop = 5;
inline constexpr unsigned kNvtxNameCategory = 8;
inline constexpr unsigned kNvtxDomainCreate = 12;
using NvtxRangePushFunction = int(NvtxDomain domain, const NvtxEvent* event);
using NvtxRangePopFunction = int(NvtxDomain domain);
using NvtxNameCategoryFunction = void(NvtxDomain domain, uint32_t category, const char* name);
using NvtxDomainCreateFunction = NvtxDomain(const char* name);

// The profiler of this process. Thread-safe.
class Nvtx {
 public:
  // `library`: what NVTX_INJECTION64_PATH says. nullptr: it is empty, or there is nothing that
  // wants to be told. A process attaches once: the first library that is named counts.
  static const Nvtx* Attach(const std::string& library);

  // Categories are those of process sets.
  void NameCategory(ProcessSetId process_set, const std::string& name) const;

 private:
  friend class NvtxRange;
  Nvtx() = default;

  NvtxDomain domain_ = nullptr;
  NvtxRangePushFunction* push_ = nullptr;
  NvtxRangePopFunction* pop_ = nullptr;
  NvtxNameCategoryFunction* name_category_ = nullptr;
};

// A range of the thread that makes it, and ends it; ranges of a thread end in the opposite order.
class NvtxRange {
 public:
  NvtxRange(const Nvtx& nvtx, ProcessSetId process_set, const std::string& name, int64_t bytes);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  const Nvtx& nvtx_;
};

}  // namespace coordd
