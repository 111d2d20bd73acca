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

// "host b: slots of ranks 2, 3 are there".
std::vector<std::string> Sentences(const std::vector<Slot>& slots,
                                   const std::vector<int32_t>& workers, const char* what) {
  std::map<std::string, std::vector<int32_t>> by_host;
  for (const int32_t worker : workers)
    by_host[slots[static_cast<size_t>(worker)].host].push_back(worker);
  std::vector<std::string> sentences;
  for (const auto& [host, ranks] : by_host) {
    sentences.push_back(absl::StrCat("host ", host, " ", what,
                                     ranks.size() == 1 ? ": rank " : ": ranks ",
                                     absl::StrJoin(ranks, ", ")));
  }
  return sentences;
}

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

SlotChange SlotBook::Update(absl::Span<const HostSlots> hosts) {
  SlotChange change;
  std::map<std::string, int32_t> room;
  for (const HostSlots& host : hosts) room[host.host] = std::max(host.slots, 1);
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const auto host = room.find(slot.host);
    const bool there = host != room.end() && slot.local_rank < host->second;
    if (there) slot.local_size = host->second;
    if (slot.wanted && !there) change.end.push_back(static_cast<int32_t>(i));
    slot.wanted = slot.wanted && there;
    slot.drained = slot.drained && there;
  }
  int32_t count = wanted();
  for (const HostSlots& host : hosts) {
    for (int32_t local = 0; local < std::max(host.slots, 1); ++local) {
      if (most_ > 0 && count >= most_) break;
      const int32_t index = IndexOf(host, local);
      Slot& slot = slots_[static_cast<size_t>(index)];
      if (slot.wanted || slot.drained) continue;
      slot.wanted = true;
      slot.local_size = std::max(host.slots, 1);
      change.start.push_back(index);
      ++count;
    }
  }
  change.sentences = Sentences(slots_, change.start, "is there");
  for (std::string& gone : Sentences(slots_, change.end, "is gone"))
    change.sentences.push_back(std::move(gone));
  return change;
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
