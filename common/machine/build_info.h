// What this build was made with and what is there at run time: the table of the configure step and
// of `coordctl check-build`. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/environment.h"

namespace coordd {

struct Component {
  std::string name;  // "UCX"
  bool available = false;
  std::string built;    // version at build time; empty: not built in
  std::string loaded;   // version at run time, or what was found; empty: none, or it does not tell
  std::string note;     // what else there is to say of what is loaded, one phrase
  std::string why_not;  // when not available, one phrase
};

// In the order of the table: gRPC, Protobuf, Abseil, UCX, CUDA, NCCL, prometheus-cpp, OpenSSL.
// Opens what is used only when present (UCX, CUDA's driver, NCCL): UCX as OpenUcx; NCCL is the copy
// already in this process, else COORDD_NCCL_LIBRARY of `environment`, else the system's.
std::vector<Component> BuildComponents(const Environment& environment);

// Whether the configure step put it in; what is loaded at run time may still be missing.
bool IsBuiltIn(absl::string_view component);

// "[X] NCCL 2.28 (built), 2.28.9 (loaded)" or "[ ] NCCL: why not". Behind the version of a loaded
// NCCL that is older than what was built against stands what it lacks; UCX has a note on whether
// its version was tried, gRPC one on weaknesses that are known of its version.
std::string ToLine(const Component& component);

// The components as a JSON array of objects with the names of Component's members.
std::string ComponentsToJson(const std::vector<Component>& components);

// A version as ncclGetVersion counts, in words: 22809 is "2.28.9", 2708 is "2.7.8".
std::string NcclVersionText(int number);

}  // namespace coordd
