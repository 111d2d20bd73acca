#include "server/service/event_lines.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/protocol/rank_runs.h"
#include "server/model/event_log.h"

namespace coordd {
namespace {

// Ranks that lie scattered over the nodes make runs of one each.
constexpr size_t kMaxRuns = 32;

// "lost 64 workers on node3, ranks 128-191: its connection closed without a goodbye"; "2 workers on
// node3, ranks 0-1: each left". `where`: "node3", or "512 hosts".
std::string SharedText(const Event& first, const std::string& where, std::vector<int32_t> ranks) {
  const size_t workers = ranks.size();
  std::erase(ranks, -1);
  std::sort(ranks.begin(), ranks.end());
  const std::string which = ranks.empty() ? std::string(", which had no ranks yet")
                                          : absl::StrCat(ranks.size() == 1 ? ", rank " : ", ranks ",
                                                         RankRunsText(ranks, kMaxRuns));
  const std::string who = absl::StrCat(workers, " workers on ", where, which);
  absl::string_view detail = first.departed->detail;
  return absl::ConsumePrefix(&detail, "was lost: ") ? absl::StrCat("lost ", who, ": ", detail)
                                                    : absl::StrCat(who, ": each ", detail);
}

}  // namespace

std::map<size_t, std::string> SharedDepartures(const std::vector<Event>& events) {
  using Common = std::tuple<std::string, v1::DepartureCause, std::string>;
  using ByHost = std::map<std::string, std::vector<size_t>>;
  std::map<Common, ByHost> groups;
  for (size_t i = 0; i < events.size(); ++i) {
    const Event& event = events[i];
    if (!event.departed.has_value()) continue;
    // For how long each was silent is different of each.
    const std::string& detail = event.departed->detail;
    const bool is_silence = event.cause == v1::DEPARTURE_CAUSE_LEASE_EXPIRED;
    groups[{event.job, event.cause, is_silence ? "" : detail}][event.departed->host].push_back(i);
  }
  std::map<size_t, std::string> sentences;
  const auto tell = [&](const std::vector<size_t>& places, const std::string& where) {
    if (places.size() == 1) return;
    std::vector<int32_t> ranks;
    ranks.reserve(places.size());
    for (const size_t place : places) {
      ranks.push_back(events[place].departed->rank);
      sentences[place];
    }
    sentences[places.front()] = SharedText(events[places.front()], where, std::move(ranks));
  };
  for (const auto& [common, by_host] : groups) {
    if (by_host.size() <= kHostsApart) {
      for (const auto& [host, places] : by_host) tell(places, host);
      continue;
    }
    std::vector<size_t> all;
    for (const auto& [host, places] : by_host) all.insert(all.end(), places.begin(), places.end());
    std::sort(all.begin(), all.end());
    tell(all, absl::StrCat(by_host.size(), " hosts"));
  }
  return sentences;
}

void EventLines::Write(const std::vector<Event>& events,
                       absl::FunctionRef<std::string(const std::string&)> owner_of,
                       absl::Time now) {
  const std::map<size_t, std::string> shared = SharedDepartures(events);
  for (size_t i = 0; i < events.size(); ++i) {
    const auto found = shared.find(i);
    WriteOne(events[i], owner_of(events[i].job),
             found == shared.end() ? events[i].text : found->second, now);
  }
}

std::optional<std::string> EventLines::PassOf(const std::string& owner, Event::Kind kind,
                                              absl::Time now) {
  if (of_owners_.size() >= sweep_at_) {
    std::erase_if(of_owners_, [now](const auto& entry) { return entry.second.IsUnused(now); });
    sweep_at_ = 4096 + 2 * of_owners_.size();
  }
  LogLimit& limit = of_owners_.try_emplace({owner, kind}, kOwnersEvery, kOwnersBurst).first->second;
  std::optional<std::string> passes = limit.Pass(now);
  if (passes.has_value() && !passes->empty() && !owner.empty())
    absl::StrAppend(&*passes, " (of jobs of ", owner, ")");
  return passes;
}

void EventLines::WriteOne(const Event& event, const std::string& owner, const std::string& text,
                          absl::Time now) {
  if (text.empty()) return;
  const std::string where =
      event.job.empty() ? std::string() : absl::StrCat("job ", event.job, ": ");
  if (event.kind == Event::Kind::kTensorsPlanned) {
    COORDD_LOG(kDebug, where, text);
    return;
  }
  std::string more;
  if (StrangersCause(event.kind)) {
    std::optional<std::string> passes = limits_[event.kind].Pass(now);
    if (!passes.has_value()) return;
    more = *std::move(passes);
  } else if (!event.job.empty()) {
    std::optional<std::string> passes = PassOf(owner, event.kind, now);
    if (!passes.has_value()) return;
    more = *std::move(passes);
  }
  // Who was refused, and from where: what his messages say of him proves nothing.
  const bool is_refused =
      event.kind == Event::Kind::kJoinRefused || event.code == absl::StatusCode::kResourceExhausted;
  if (is_refused && event.caller != nullptr)
    absl::StrAppend(&more, " (", CallerText(*event.caller), ")");
  if (IsWarning(event)) {
    COORDD_LOG(kWarning, where, text, more);
  } else {
    COORDD_LOG(kInfo, where, text, more);
  }
}

}  // namespace coordd
