// libFuzzer on the grammars of host lists: nothing but a list or INVALID_ARGUMENT may come out, and
// folding what was expanded must expand to the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/launch/host_list.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

template <typename Result>
void Check(const Result& result) {
  Require(result.ok() || absl::IsInvalidArgument(result.status()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto hosts = coordd::ExpandHostList(text);
  Check(hosts);
  if (hosts.ok() && hosts->size() < 10000) {
    const auto again = coordd::ExpandHostList(coordd::CompressHostList(*hosts));
    Require(again.ok() && *again == *hosts);
  }
  Check(coordd::ExpandTasksPerNode(text));
  Check(coordd::ParseHostsOption(text));
  Check(coordd::ParseHostCounts(text));
  Check(coordd::ParseHostWords(text));
  Check(coordd::ParseHostPerSlotFile(text));
  Check(coordd::ParseHostFile(text));
  Check(coordd::ParseTopologyShape(text));
  return 0;
}
