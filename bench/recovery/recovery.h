// What the death of a process costs a running job. (io)
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace coordd::bench {

// To whom it happens.
enum class Victim {
  kWorker,         // killed
  kStopped,        // a worker that stands still, and wakes up after the others have gone on
  kCoordd,         // killed
  kCoorddWriting,  // killed while it stores who is a member of what
  kNewcomer,       // nobody: one more joins
  kNobody,         // nothing happens: nobody may be taken for dead
};

// By the names that --victim has for them.
std::map<std::string, Victim> Victims();

struct RecoveryOptions {
  Victim victim = Victim::kWorker;
  int32_t workers = 4;
  int32_t times = 10;
  int64_t elements = 1 << 16;                  // floats of a step's reduction
  absl::Duration interval = absl::Seconds(1);  // kCoordd: between two kills
  absl::Duration lease = absl::Seconds(2);     // kStopped
  std::string etcd;  // kCoordd: "HOST:PORT", with one that stands by; empty: on SQLite
  absl::Duration store_lease = absl::Seconds(3);  // kCoordd, with etcd
  absl::Duration duration = absl::Seconds(10);    // kNobody
  int32_t planted = 0;                            // kCoorddWriting: how often a record is removed
  int32_t spinning = 0;                           // processes beside the job that want a core each
  std::string on_failure = "raise";               // or "continue": no survivor is told anything
};

// Starts real processes (rank.cc) that reduce in a loop. Milliseconds:
//   kWorker, kStopped  from SIGKILL or SIGSTOP, a fresh job each time, to the last survivor's first
//                      result in the next generation
//   kCoordd            again and again under one job, on state in SQLite or etcd: until every rank
//   has a
//                      result under a name that nobody had seen, agreed upon after coordd was ready
//                      again, and until it was ready
//   kCoorddWriting     until coordd is ready; and whether all that it had announced is in its state
//   kNewcomer          a fresh job each time: the longest pause of a member between its last result
//                      without the newcomer and its first one with it
absl::StatusOr<nlohmann::json> MeasureRecovery(const RecoveryOptions& options);

}  // namespace coordd::bench
