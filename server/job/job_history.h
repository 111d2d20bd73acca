// What a job has done before, as far as it is remembered.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "coordd/v1/admin.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/job/executed_counts.h"

namespace coordd {

inline constexpr size_t kMaxDepartures = 64;  // what status and an Abort name at most
// Behind the others; of many the oldest is forgotten.
void AddDeparture(std::deque<v1::Departure>& departures, const v1::Departure& departure);

// PURE. Not thread-safe. All of it is of one run, as far as launchers tell the runs apart.
class JobHistory {
 public:
  // What a launcher has told of a process that is not in the job.
  struct ProcessNews {
    bool departed = false;                     // a departure was its
    std::optional<std::string> sentence = {};  // absent: it is no news
    v1::DepartureCause cause = v1::DEPARTURE_CAUSE_UNSPECIFIED;
  };

  const std::deque<v1::Departure>& departures() const { return departures_; }  // newest last
  void Add(const v1::Departure& departure) { AddDeparture(departures_, departure); }
  bool Knows(const v1::Departure& departure) const;  // the same worker, in the same words
  ProcessNews NoteExit(const v1::LaunchedExit& in);

  ExecutedCounts& executed() { return executed_; }
  const ExecutedCounts& executed() const { return executed_; }

  // A worker with this name of its launcher begins the job: of another run nothing is remembered.
  // Of those whose launcher names none nobody can tell.
  void ForgetEarlierRun(const std::string& launch);

 private:
  std::deque<v1::Departure> departures_;
  ExecutedCounts executed_;
};

}  // namespace coordd
