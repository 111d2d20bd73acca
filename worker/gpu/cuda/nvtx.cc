#include "worker/gpu/cuda/nvtx.h"

#include <iterator>

#include "common/base/dynamic_library.h"
#include "common/base/log.h"

namespace coordd {
namespace {

constexpr size_t kModules = std::size(kNvtxModules);
constexpr unsigned kMostEntries = 16;

// Where the profiler leaves its functions, also those that nobody calls here: it may write any.
struct NvtxSlots {
  NvtxFunction functions[kModules][kMostEntries] = {};
  NvtxFunction* tables[kModules][kMostEntries + 1] = {};  // nullptr for 0, and behind the last

  NvtxSlots() {
    for (size_t module = 0; module < kModules; ++module)
      for (unsigned entry = 1; entry < kNvtxEntries[module]; ++entry)
        tables[module][entry] = &functions[module][entry];
  }
};

// The profiler's callbacks have no argument to tell one from another, and it keeps the addresses.
NvtxSlots& Slots() {
  static NvtxSlots* const slots = new NvtxSlots();
  return *slots;
}

int GetNvtxTable(int module, NvtxTable* table, unsigned* entries) {
  for (size_t i = 0; i < kModules; ++i) {
    if (kNvtxModules[i] != module) continue;
    if (table != nullptr) *table = Slots().tables[i];
    if (entries != nullptr) *entries = kNvtxEntries[i];
    return 1;
  }
  return 0;
}

void SetNvtxInjectionVersion(uint32_t) {}

const void* ExportNvtxTable(uint32_t id) {
  static const NvtxCallbacks callbacks = {sizeof(NvtxCallbacks), GetNvtxTable};
  static const NvtxVersion version = {sizeof(NvtxVersion), 3, 0, SetNvtxInjectionVersion};
  if (id == kNvtxCallbacksTable) return &callbacks;
  return id == kNvtxVersionTable ? &version : nullptr;
}

bool InitializeNvtx(const std::string& name) {
  auto library = DynamicLibrary::Open(name);
  if (!library.ok()) {
    COORDD_LOG(kWarning, kNvtxVariable, ": ", library.status().message());
    return false;
  }
  auto* const initialize = library->Function<int(NvtxExportTable)>(kNvtxEntry);
  if (initialize == nullptr) {
    COORDD_LOG(kWarning, kNvtxVariable, ": ", name, " has no ", kNvtxEntry);
    return false;
  }
  return initialize(ExportNvtxTable) != 0;  // 0: it wants nothing
}

template <typename Function>
Function* DomainFunction(unsigned entry) {
  return reinterpret_cast<Function*>(Slots().functions[kNvtxDomains - 1][entry]);
}

// 0 is no category.
uint32_t NvtxCategoryOf(ProcessSetId process_set) {
  return static_cast<uint32_t>(ToInt(process_set)) + 1;
}

}  // namespace

const Nvtx* Nvtx::Attach(const std::string& library) {
  if (library.empty()) return nullptr;
  static const Nvtx* const attached = [&library]() -> const Nvtx* {
    if (!InitializeNvtx(library)) return nullptr;
    auto* const nvtx = new Nvtx();
    nvtx->push_ = DomainFunction<NvtxRangePushFunction>(kNvtxRangePush);
    nvtx->pop_ = DomainFunction<NvtxRangePopFunction>(kNvtxRangePop);
    nvtx->name_category_ = DomainFunction<NvtxNameCategoryFunction>(kNvtxNameCategory);
    auto* const create = DomainFunction<NvtxDomainCreateFunction>(kNvtxDomainCreate);
    if (nvtx->push_ == nullptr || nvtx->pop_ == nullptr) {
      delete nvtx;
      return nullptr;
    }
    if (create != nullptr) nvtx->domain_ = create("coordd");
    return nvtx;
  }();
  return attached;
}

void Nvtx::NameCategory(ProcessSetId process_set, const std::string& name) const {
  if (name_category_ != nullptr) name_category_(domain_, NvtxCategoryOf(process_set), name.c_str());
}

NvtxRange::NvtxRange(const Nvtx& nvtx, ProcessSetId process_set, const std::string& name,
                     int64_t bytes)
    : nvtx_(nvtx) {
  NvtxEvent event;
  event.category = NvtxCategoryOf(process_set);
  event.payload_type = kNvtxPayloadUint64;
  event.payload = static_cast<uint64_t>(bytes);
  event.message_type = kNvtxMessageAscii;
  event.message = name.c_str();
  nvtx_.push_(nvtx_.domain_, &event);
}

NvtxRange::~NvtxRange() { nvtx_.pop_(nvtx_.domain_); }

}  // namespace coordd
