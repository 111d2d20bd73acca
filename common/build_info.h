// What this build was made with and what is there at run time: the table of the configure step and
// of `coordctl check-build`.
#pragma once

#include <string>
#include <vector>

namespace coordd {

struct Component {
  std::string name;  // "UCX"
  bool available = false;
  std::string built;    // version at build time; empty: not built in
  std::string loaded;   // version at run time; empty: not loaded
  std::string why_not;  // when not available, one phrase
};

// In the order of the table: gRPC, Protobuf, Abseil, UCX, CUDA, NCCL, prometheus-cpp, TLS library.
std::vector<Component> BuildComponents();

// "[X] NCCL 2.28.9 (built), 2.28.9 (loaded)" or "[ ] NCCL: why not".
std::string ToLine(const Component& component);

}  // namespace coordd
