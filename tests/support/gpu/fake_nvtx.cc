// A profiler that listens to NVTX: writes what it is told, a line each, into the file that
// FAKE_NVTX names.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "worker/gpu/cuda/nvtx.h"

namespace coordd {
namespace {

std::mutex mu;

void Write(const std::string& line) {
  static thread_local const size_t thread =
      std::hash<std::thread::id>()(std::this_thread::get_id());
  const char* path = getenv("FAKE_NVTX");
  if (path == nullptr) return;
  std::lock_guard lock(mu);
  std::FILE* const file = std::fopen(path, "a");
  if (file == nullptr) std::abort();
  std::fprintf(file, "%zx %s\n", thread, line.c_str());
  std::fclose(file);
}

struct Domain {
  std::string name;
};
std::string Name(NvtxDomain domain) { return reinterpret_cast<Domain*>(domain)->name; }

NvtxDomain Create(const char* name) { return reinterpret_cast<NvtxDomain>(new Domain{name}); }
void NameCategory(NvtxDomain domain, uint32_t category, const char* name) {
  Write(Name(domain) + " category " + std::to_string(category) + " [" + name + "]");
}
int Push(NvtxDomain domain, const NvtxEvent* event) {
  const bool sound = event->version == 3 && event->size == sizeof(NvtxEvent) &&
                     event->message_type == kNvtxMessageAscii &&
                     event->payload_type == kNvtxPayloadUint64;
  Write(sound ? Name(domain) + " push " + std::to_string(event->category) + " [" + event->message +
                    "] " + std::to_string(event->payload)
              : std::string("malformed event"));
  return 0;
}
int Pop(NvtxDomain domain) {
  Write(Name(domain) + " pop");
  return 0;
}

}  // namespace
}  // namespace coordd

extern "C" int InitializeInjectionNvtx2(coordd::NvtxExportTable tables) {
  using namespace coordd;
  const auto* callbacks = static_cast<const NvtxCallbacks*>(tables(kNvtxCallbacksTable));
  const auto* version = static_cast<const NvtxVersion*>(tables(kNvtxVersionTable));
  if (callbacks == nullptr || callbacks->size < sizeof(NvtxCallbacks) || version == nullptr ||
      version->version != 3 || tables(2) != nullptr)
    return 0;
  version->set_injection_version(3);
  NvtxTable table = nullptr;
  unsigned entries = 0;
  if (callbacks->get_table(kNvtxDomains, &table, &entries) != 1 || entries != 16) return 0;
  *table[kNvtxDomainCreate] = reinterpret_cast<NvtxFunction>(Create);
  *table[kNvtxNameCategory] = reinterpret_cast<NvtxFunction>(NameCategory);
  *table[kNvtxRangePush] = reinterpret_cast<NvtxFunction>(Push);
  *table[kNvtxRangePop] = reinterpret_cast<NvtxFunction>(Pop);
  return 1;
}
