#include "common/machine/grpc_weaknesses.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace coordd {
namespace {

using Version = std::array<int, 3>;

struct Weakness {
  const char* name;
  // In order: the last one and all behind it have none of it, the ones before within their series.
  std::vector<Version> mended;
};

// github.com/advisories and gRPC's release notes, as of November 2026. Those that need a proxy in
// front (CVE-2024-7246) or zero-copy sends (CVE-2024-11407) are none here.
const std::vector<Weakness>& All() {
  static const auto* const all = new std::vector<Weakness>{
      {"CVE-2023-1428", {{1, 53, 0}}},   // an abort by headers above 8 KiB
      {"CVE-2023-32731", {{1, 53, 0}}},  // headers that are passed over, and their table with them
      {"CVE-2023-32732", {{1, 53, 0}}},  // an end of the connection by a header in base64
      // Memory and time without a bound by headers.
      {"CVE-2023-33953", {{1, 53, 2}, {1, 54, 3}, {1, 55, 2}, {1, 56, 2}, {1, 57, 0}}},
      // A listener that is deaf for ever once descriptors have run out.
      {"CVE-2023-4785", {{1, 53, 2}, {1, 54, 3}, {1, 55, 3}, {1, 56, 2}, {1, 57, 0}}},
      {"CVE-2023-44487", {{1, 59, 2}}},  // calls that are begun and reset
  };
  return *all;
}

// False: it is no version of gRPC.
bool Parse(absl::string_view text, Version& version) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::ByAnyChar(".-"));
  if (parts.size() < version.size()) return false;
  for (size_t i = 0; i < version.size(); ++i)
    if (!absl::SimpleAtoi(parts[i], &version[i])) return false;
  return true;
}

bool Has(const Version& version, const Weakness& weakness) {
  if (version >= weakness.mended.back()) return false;
  return std::none_of(weakness.mended.begin(), weakness.mended.end(), [&](const Version& mended) {
    return version[0] == mended[0] && version[1] == mended[1] && version >= mended;
  });
}

}  // namespace

std::vector<std::string> GrpcWeaknesses(absl::string_view text) {
  std::vector<std::string> names;
  Version version = {};
  if (!Parse(text, version)) return names;
  for (const Weakness& weakness : All())
    if (Has(version, weakness)) names.emplace_back(weakness.name);
  return names;
}

std::string GrpcWeaknessText(absl::string_view version) {
  const std::vector<std::string> names = GrpcWeaknesses(version);
  if (names.empty()) return "";
  return absl::StrCat("released with ", absl::StrJoin(names, ", "),
                      ", all of which coordd was tried with (SECURITY.md)");
}

}  // namespace coordd
