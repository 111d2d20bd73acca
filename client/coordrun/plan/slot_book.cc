#include "client/coordrun/plan/slot_book.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr int32_t kMaxSlotsOfHost = 4096;

absl::Status LineError(absl::string_view line, absl::string_view expected) {
  constexpr size_t kShown = 80;
  return absl::InvalidArgumentError(
      absl::StrCat("the line '", absl::CHexEscape(line.substr(0, kShown)),
                   line.size() > kShown ? "..." : "", "': ", expected));
}

// One host, or one in bracket notation.
absl::StatusOr<std::vector<HostSlots>> ParseDiscoveredLine(absl::string_view line,
                                                           int32_t slots_per_host) {
  int32_t slots = slots_per_host;
  absl::string_view name = line;
  const size_t colon = line.rfind(':');
  // That of an address in brackets is no end of a host.
  if (colon != absl::string_view::npos && line.find(']', colon) == absl::string_view::npos) {
    name = line.substr(0, colon);
    if (!absl::SimpleAtoi(line.substr(colon + 1), &slots) || slots < 0 || slots > kMaxSlotsOfHost) {
      return LineError(line, absl::StrCat("expected HOST or HOST:SLOTS, with at most ",
                                          kMaxSlotsOfHost, " slots"));
    }
  }
  int depth = 0;
  for (const char c : name) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (absl::ascii_isspace(static_cast<unsigned char>(c)) || (c == ',' && depth == 0))
      return LineError(line, "expected one HOST or HOST:SLOTS a line");
  }
  auto hosts = ParseHostsOption(name);
  if (!hosts.ok()) {
    return LineError(line,
                     absl::StrCat("expected HOST or HOST:SLOTS (", hosts.status().message(), ")"));
  }
  for (HostSlots& host : *hosts) host.slots = slots;
  return hosts;
}

}  // namespace

int32_t SlotBook::IndexOf(const HostSlots& host, int32_t local_rank) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].host == host.host && slots_[i].local_rank == local_rank)
      return static_cast<int32_t>(i);
  }
  slots_.push_back({.host = host.host, .user = host.user, .local_rank = local_rank});
  return static_cast<int32_t>(slots_.size() - 1);
}

int32_t SlotBook::wanted() const {
  return static_cast<int32_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.wanted; }));
}

void SlotBook::Drained(int32_t worker) {
  Slot& slot = slots_[static_cast<size_t>(worker)];
  slot.wanted = false;
  slot.drained = true;
}

std::vector<int32_t> SlotBook::SlotsOn(const std::string& host, bool drained) const {
  std::vector<int32_t> found;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const bool is_such = drained ? slot.drained : slot.wanted;
    if (is_such && slot.host == host) found.push_back(static_cast<int32_t>(i));
  }
  return found;
}

void SlotBook::Shrink(const std::string& host, int32_t room, const std::set<int32_t>& empty,
                      SlotChange* change) {
  // Who goes first stands last.
  std::vector<int32_t> taken = SlotsOn(host, /*drained=*/false);
  std::stable_partition(taken.begin(), taken.end(),
                        [&empty](int32_t worker) { return empty.count(worker) == 0; });
  while (taken.size() > static_cast<size_t>(room)) {
    change->end.push_back(taken.back());
    slots_[static_cast<size_t>(taken.back())].wanted = false;
    taken.pop_back();
  }
  std::vector<int32_t> drained = SlotsOn(host, /*drained=*/true);
  while (taken.size() + drained.size() > static_cast<size_t>(room)) {
    slots_[static_cast<size_t>(drained.back())].drained = false;
    drained.pop_back();
  }
}

int64_t SlotBook::DrainedOf(absl::Span<const HostSlots> hosts) const {
  int64_t count = 0;
  for (const HostSlots& host : hosts) {
    const auto taken = static_cast<int32_t>(SlotsOn(host.host, /*drained=*/false).size());
    const auto drained = static_cast<int32_t>(SlotsOn(host.host, /*drained=*/true).size());
    count += std::clamp(std::max(host.slots, 1) - taken, 0, drained);
  }
  return count;
}

int32_t SlotBook::LocalRankOf(int32_t worker) const {
  const Slot& own = slots_[static_cast<size_t>(worker)];
  if (own.local_rank < own.local_size) return own.local_rank;
  int32_t place = 0;  // among those whose own number is none of the host's any more
  std::set<int32_t> taken;
  for (const int32_t other : SlotsOn(own.host, /*drained=*/false)) {
    const int32_t number = slots_[static_cast<size_t>(other)].local_rank;
    if (number < own.local_size) {
      taken.insert(number);
    } else if (other < worker) {
      ++place;
    }
  }
  for (int32_t number = 0; number < own.local_size; ++number)
    if (taken.count(number) == 0 && place-- == 0) return number;
  return own.local_size - 1;
}

SlotChange SlotBook::Update(absl::Span<const HostSlots> hosts, const std::set<int32_t>& empty) {
  SlotChange change;
  std::map<std::string, int32_t> room;
  for (const Slot& slot : slots_) room[slot.host] = 0;
  for (const HostSlots& host : hosts) room[host.host] = std::max(host.slots, 1);
  for (const auto& [host, slots] : room) Shrink(host, slots, empty, &change);
  std::sort(change.end.begin(), change.end.end());
  for (Slot& slot : slots_) slot.local_size = std::max(room[slot.host], 1);
  int32_t count = wanted();
  for (const HostSlots& host : hosts) {
    const int32_t slots = std::max(host.slots, 1);
    auto free = slots - static_cast<int32_t>(SlotsOn(host.host, /*drained=*/false).size() +
                                             SlotsOn(host.host, /*drained=*/true).size());
    for (int32_t local = 0; local < slots && free > 0; ++local) {
      if (most_ > 0 && count >= most_) break;
      const int32_t index = IndexOf(host, local);
      Slot& slot = slots_[static_cast<size_t>(index)];
      if (slot.wanted || slot.drained) continue;
      slot.wanted = true;
      slot.local_size = slots;
      change.start.push_back(index);
      ++count;
      --free;
    }
  }
  return change;
}

std::vector<std::string> SlotSentences(const SlotChange& change, absl::Span<const Slot> slots,
                                       absl::Span<const HostSlots> hosts,
                                       absl::Span<const pid_t> pids) {
  std::vector<std::string> sentences;
  const auto add = [&](const std::vector<int32_t>& workers, bool ended) {
    std::map<std::string, std::vector<std::string>> by_host;
    for (const int32_t worker : workers) {
      const auto index = static_cast<size_t>(worker);
      const pid_t pid = ended && index < pids.size() ? pids[index] : 0;
      by_host[slots[index].host].push_back(
          absl::StrCat(worker, pid == 0 ? "" : absl::StrCat(" (pid ", pid, ")")));
    }
    for (const auto& [host, names] : by_host) {
      const bool stays =
          std::any_of(hosts.begin(), hosts.end(),
                      [&name = host](const HostSlots& there) { return there.host == name; });
      sentences.push_back(absl::StrCat("host ", host,
                                       !ended  ? " is there"
                                       : stays ? " has fewer slots"
                                               : " is gone",
                                       names.size() == 1 ? ": slot " : ": slots ",
                                       absl::StrJoin(names, ", ")));
    }
  };
  add(change.start, /*ended=*/false);
  add(change.end, /*ended=*/true);
  return sentences;
}

absl::StatusOr<std::vector<HostSlots>> ParseDiscovered(const std::string& text,
                                                       int32_t slots_per_host) {
  std::vector<HostSlots> hosts;
  std::set<std::string> known;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    COORDD_ASSIGN_OR_RETURN(const std::vector<HostSlots> named,
                            ParseDiscoveredLine(line, slots_per_host));
    for (const HostSlots& host : named) {
      if (host.slots > 0 && known.insert(host.host).second) hosts.push_back(host);
      if (hosts.size() > kMaxHosts) {
        return absl::InvalidArgumentError(
            absl::StrCat("more than ", kMaxHosts, " hosts: expected at most so many"));
      }
    }
  }
  return hosts;
}

int64_t SlotsOf(absl::Span<const HostSlots> hosts) {
  int64_t slots = 0;
  for (const HostSlots& host : hosts) slots += std::max(host.slots, 1);
  return slots;
}

}  // namespace coordd
