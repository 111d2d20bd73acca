// Where a worker's coordd is when nobody has said so (--coordinator auto): the rule by which the
// processes of one start agree without speaking to each other. PURE
//
// Task 0 starts a coordd, writes how to reach it into a file in a directory that all nodes see, and
// the others read that file. docs/LAUNCHING.md has the whole story.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/launch/launcher_detect.h"
#include "common/net/address.h"

namespace coordd {

// coordd's ports when no range is given lie in [20000, 40000): below those that Linux hands out to
// clients (32768 and up on most systems; a taken one is passed over), above those of services.
constexpr uint16_t kAutoPortBase = 20000;
constexpr uint16_t kAutoPortCount = 20000;
// How many ports are tried, from the rule's own on.
constexpr uint16_t kAutoPortTries = 100;

struct AutoSettings {
  std::string rendezvous_file;     // COORDD_RENDEZVOUS_FILE; empty: chosen
  std::string shared_directory;    // the home directory; empty: there is none
  std::string local_directory;     // ours alone, on this machine: for jobs of one node
  std::optional<PortRange> ports;  // COORDD_PORT_RANGE
  int32_t workers = 0;             // of the job, at most; 0: not said
};

struct AutoPlan {
  enum class Role {
    kAlone,   // a world of one: starts a coordd on loopback for itself
    kStarts,  // task 0: starts the coordd that all use
    kFinds,   // waits for the file
  };
  Role role = Role::kAlone;
  bool one_node = true;         // loopback will do
  std::string rendezvous_file;  // empty with kAlone
  PortRange ports;              // the coordd that is started tries them in this order
  std::string why;              // one sentence, for the log
};

// FAILED_PRECONDITION, one sentence that says what to do: this process is none of its launcher's;
// nothing names this start of the program; there is no directory that all nodes share; how many
// workers there are is not known.
absl::StatusOr<AutoPlan> PlanAutoCoordinator(const LaunchPlace& place,
                                             const AutoSettings& settings);

// The port that the rule gives to a start of a program: 20000 + hash % 20000.
uint16_t PortOfInstance(absl::string_view instance);

// Names of this start as a part of a path: "4711.0-1a2b3c4d-5e6f7a8b"; the last part stands for the
// schedulers' jobs.
std::string DirectoryOfInstance(const LaunchPlace& place);

// A launcher that reaches hosts through ssh hides the scheduler's job from the processes there. So
// who sees no job takes the file of a start that has all else in common with its own, and who sees
// one that of a start that sees none. `directories`: the names beside that of the rendezvous file
// `path`. Two jobs that are both seen never meet.
std::vector<std::string> OtherRendezvousFiles(const LaunchPlace& place, const std::string& path,
                                              absl::Span<const std::string> directories);

// Whether who wrote `instance` may be of the same start as the process at `place`.
bool IsOfThisStart(const LaunchPlace& place, absl::string_view instance);

}  // namespace coordd
