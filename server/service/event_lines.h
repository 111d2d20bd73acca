// Events as lines of the log.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/log_limit.h"
#include "server/model/effects.h"

namespace coordd {

// The sentences for departures that have all in common but the process: job, cause, host and what
// is told of it. By the place of the event; the first one's tells of all, with their ranks as runs,
// and the others' is empty. Of those that are alone there is none. PURE
std::map<size_t, std::string> SharedDepartures(const std::vector<Event>& events);

// Not thread-safe. What a stranger can make happen as often as he likes is written seldom, in
// events (EventLog) even more so; the metrics have all of it.
class EventLines {
 public:
  // Those of one turn.
  void Write(const std::vector<Event>& events, absl::Time now);

 private:
  void WriteOne(const Event& event, const std::string& text, absl::Time now);

  std::map<Event::Kind, LogLimit> limits_;
};

}  // namespace coordd
