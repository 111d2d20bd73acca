#include "worker/gpu/nvml/nvml_words.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/gpu/nvml/nvml_api.h"

namespace coordd {
namespace {

constexpr std::pair<uint64_t, const char*> kReasons[] = {
    {kNvmlSlowClocksSetting, "set clocks"},
    {kNvmlSlowPowerCap, "power cap"},
    {kNvmlSlowHardware, "hardware slowdown"},
    {kNvmlSlowSyncBoost, "sync boost"},
    {kNvmlSlowThermal, "temperature"},
    {kNvmlSlowHardwareThermal, "temperature (hardware)"},
    {kNvmlSlowPowerBrake, "power brake (hardware)"},
    {kNvmlSlowDisplay, "display clocks"},
};

const char* MeaningOf(uint64_t xid) {
  switch (xid) {
    case 13:
      return "a kernel of the program has failed on the device";
    case 31:
      return "a kernel has touched memory that it has not";
    case 43:
      return "the program's work on the device was stopped";
    case 48:
      return "an uncorrectable error in the device's memory";
    case 63:
    case 64:
      return "a row of the device's memory was replaced, or could not be";
    case 74:
      return "an error of NVLink";
    case 79:
      return "the GPU has fallen off the bus";
    case 94:
      return "an uncorrectable memory error that concerns this program alone";
    case 95:
      return "an uncorrectable memory error: the GPU has to be reset";
    case 119:
    case 120:
      return "the GPU's system processor does not answer";
    default:
      return nullptr;
  }
}

}  // namespace

std::vector<std::string> SlowdownReasons(uint64_t bits) {
  std::vector<std::string> reasons;
  bits &= ~kNvmlSlowIdle;
  for (const auto& [bit, name] : kReasons) {
    if ((bits & bit) != 0) reasons.emplace_back(name);
    bits &= ~bit;
  }
  if (bits != 0) reasons.push_back(absl::StrCat("reason 0x", absl::Hex(bits)));
  return reasons;
}

std::string XidText(uint64_t xid) {
  const char* const meaning = MeaningOf(xid);
  return meaning == nullptr ? absl::StrCat("XID ", xid)
                            : absl::StrCat("XID ", xid, " (", meaning, ")");
}

}  // namespace coordd
