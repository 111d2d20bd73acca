// Events as lines of the log.
#pragma once

#include <map>

#include "absl/time/time.h"
#include "common/base/log_limit.h"
#include "server/model/effects.h"

namespace coordd {

// Not thread-safe. What a stranger can make happen as often as he likes is written seldom, in
// events (EventLog) even more so; the metrics have all of it.
class EventLines {
 public:
  void Write(const Event& event, absl::Time now);

 private:
  std::map<Event::Kind, LogLimit> limits_;
};

}  // namespace coordd
