#include "client/coordctl/events_view.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/protocol/proto_json.h"

namespace coordd {

std::string EventText(const v1::JobEvent& event, absl::TimeZone zone) {
  const absl::Time time = absl::UnixEpoch() + absl::Seconds(event.unix_seconds());
  std::string about = event.job().empty() ? "coordd" : event.job();
  // Many sentences begin with it.
  if (event.generation() > 0 && !absl::StartsWith(event.text(), "generation "))
    absl::StrAppend(&about, ", generation ", event.generation());
  return absl::StrFormat(
      "%s  %-7s  %-19s  %s: %s", absl::FormatTime("%Y-%m-%d %H:%M:%S", time, zone),
      event.warning() ? "warning" : "", EnumeratorName(event.kind()), about, event.text());
}

std::string EventsText(const v1::EventList& list, absl::TimeZone zone) {
  if (list.events().empty()) return "Nothing has happened yet.\n";
  std::string text;
  for (const v1::JobEvent& event : list.events())
    absl::StrAppend(&text, EventText(event, zone), "\n");
  return text;
}

v1::GetEventsRequest NextRequest(const v1::GetEventsRequest& request, const v1::EventList& list,
                                 int64_t epoch) {
  v1::GetEventsRequest next = request;
  next.set_limit(0);
  if (epoch != 0 && list.epoch() != epoch) {
    next.set_after(0);
  } else if (!list.events().empty()) {
    next.set_after(list.events(list.events_size() - 1).number());
  }
  return next;
}

}  // namespace coordd
