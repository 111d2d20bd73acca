// Events as lines of the log.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/log_limit.h"
#include "server/model/effects.h"

namespace coordd {

// Sentences for so many hosts at most, which differ in nothing else, are told apart.
inline constexpr size_t kHostsApart = 16;

// The sentences for departures that have all in common but the process: job, cause, host and what
// is told of it. By the place of the event; the first one's tells of all, with their ranks as runs,
// and the others' is empty. Of those that are alone there is none. Where that would be sentences
// for more than kHostsApart hosts, one tells of all of them. PURE
std::map<size_t, std::string> SharedDepartures(const std::vector<Event>& events);

// Not thread-safe. What a stranger can make happen as often as he likes is written seldom, in
// events (EventLog) even more so; the metrics have all of it. What members of a job can is written
// for each owner of jobs and kind kOwnersBurst times, and then each kOwnersEvery: one who lets it
// happen thousands of times a second fills no disk, and nobody waits for lines of his.
class EventLines {
 public:
  static constexpr int kOwnersBurst = 4096;
  static constexpr absl::Duration kOwnersEvery = absl::Milliseconds(100);

  // Those of one turn. `owner_of`: a job, empty where nobody's name is known.
  void Write(const std::vector<Event>& events,
             absl::FunctionRef<std::string(const std::string&)> owner_of, absl::Time now);

 private:
  using OwnersKind = std::pair<std::string, Event::Kind>;

  void WriteOne(const Event& event, const std::string& owner, const std::string& text,
                absl::Time now);
  std::optional<std::string> PassOf(const std::string& owner, Event::Kind kind, absl::Time now);

  std::map<Event::Kind, LogLimit> limits_;
  std::map<OwnersKind, LogLimit> of_owners_;
  size_t sweep_at_ = 4096;  // when there are so many
};

}  // namespace coordd
