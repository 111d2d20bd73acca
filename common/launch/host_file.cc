// The part of host_list.h that is about hosts with slots.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/text_cursor.h"
#include "common/launch/host_list.h"

namespace coordd {
namespace {

// More than a host has slots.
constexpr uint64_t kMaxSlots = 1'000'000;

// Hosts in the order of their first mention; further mentions add up, where one that says nothing
// counts 1.
class SlotCounts {
 public:
  absl::Status Add(const TextCursor& cursor, size_t position, HostSlots entry) {
    const auto [found, is_new] = index_.try_emplace(entry.host, hosts_.size());
    if (is_new) {
      if (hosts_.size() == kMaxHosts) {
        return cursor.ErrorAt(position, "more hosts than that",
                              absl::StrCat("at most ", kMaxHosts));
      }
      hosts_.push_back(std::move(entry));
      return absl::OkStatus();
    }
    HostSlots& host = hosts_[found->second];
    const int64_t sum = int64_t{std::max(host.slots, 1)} + std::max(entry.slots, 1);
    if (sum > static_cast<int64_t>(kMaxSlots)) {
      return cursor.ErrorAt(position, absl::StrCat(sum, " slots of host ", host.host),
                            absl::StrCat("at most ", kMaxSlots));
    }
    host.slots = static_cast<int32_t>(sum);
    host.max_slots = std::max(host.max_slots, entry.max_slots);
    if (!entry.user.empty()) host.user = entry.user;
    return absl::OkStatus();
  }
  std::vector<HostSlots> Take() { return std::move(hosts_); }
  bool empty() const { return hosts_.empty(); }

 private:
  std::vector<HostSlots> hosts_;
  std::map<std::string, size_t> index_;
};

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || absl::StrContains("._-", c); }
bool IsBlank(char c) { return absl::ascii_isspace(c); }

absl::StatusOr<int32_t> TakeSlots(TextCursor& cursor) {
  const size_t start = cursor.position();
  COORDD_ASSIGN_OR_RETURN(const auto slots, cursor.TakeNumber("a number of slots", kMaxSlots));
  if (slots.value == 0) return cursor.ErrorAt(start, "0 slots", "at least 1");
  return static_cast<int32_t>(slots.value);
}

// ssh, scp and others would take it for an option.
constexpr absl::string_view kDashFirst = "a name that begins with '-'";
constexpr absl::string_view kNoDash = "a letter, a digit or '_' there";

// "[v6]", or a name.
absl::StatusOr<std::string> TakeHost(TextCursor& cursor) {
  const size_t start = cursor.position();
  std::string host;
  if (cursor.Take('[')) {
    const auto is_v6 = [](char c) { return absl::ascii_isxdigit(c) || c == ':' || c == '.'; };
    host = std::string(cursor.TakeWhile(is_v6));
    if (!absl::StrContains(host, ':'))
      return cursor.ErrorAt(start, "brackets without an IPv6 address", "[ADDRESS] or a name");
    if (!cursor.Take(']')) return cursor.Error(cursor.Here(), "']'");
  } else {
    host = std::string(cursor.TakeWhile(IsNameCharacter));
  }
  if (host.empty()) return cursor.Error(cursor.Here(), "a host");
  if (host[0] == '-') return cursor.ErrorAt(start, kDashFirst, kNoDash);
  if (host.size() > kMaxHostNameBytes) {
    return cursor.ErrorAt(start, absl::StrCat("a name of ", host.size(), " bytes"),
                          absl::StrCat("at most ", kMaxHostNameBytes));
  }
  return host;
}

// One item of -H, without what its host expands to: everything up to a comma outside of brackets.
absl::string_view TakeOptionHost(TextCursor& cursor) {
  int depth = 0;
  return cursor.TakeWhile([&depth](char c) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    return depth > 0 || (c != ',' && c != ':' && !IsBlank(c));
  });
}

absl::StatusOr<std::vector<std::string>> ExpandOptionHost(const TextCursor& cursor, size_t start,
                                                          absl::string_view text) {
  if (text.empty()) return cursor.ErrorAt(start, cursor.Here(), "a host");
  if (text[0] == '-') return cursor.ErrorAt(start, kDashFirst, kNoDash);
  if (absl::StrContains(text, ':')) {
    TextCursor inner("the host", text);
    COORDD_ASSIGN_OR_RETURN(std::string host, TakeHost(inner));
    if (!inner.AtEnd()) return cursor.ErrorAt(start, "more behind ']'", "':' and slots");
    return std::vector<std::string>{std::move(host)};
  }
  absl::StatusOr<std::vector<std::string>> hosts = ExpandHostList(text);
  if (hosts.ok()) return hosts;
  constexpr size_t kShown = 60;
  return cursor.ErrorAt(
      start,
      absl::StrCat("\"", text.substr(0, kShown), "\"",
                   text.size() > kShown ? absl::StrCat(" and so on, ", text.size(), " bytes") : ""),
      absl::StrCat("a host, whose name has at most ", kMaxHostNameBytes));
}

// What follows the host on a line of a hosts file.
absl::Status TakeSettings(TextCursor& cursor, HostSlots* entry) {
  if (cursor.Take(':')) {
    COORDD_ASSIGN_OR_RETURN(entry->slots, TakeSlots(cursor));
  }
  bool first = true;
  while (!cursor.AtEnd()) {
    const size_t blank = cursor.position();
    if (cursor.TakeWhile(IsBlank).empty())
      return cursor.ErrorAt(blank, cursor.Here(), "white space or the end of the line");
    if (cursor.AtEnd()) break;
    const size_t start = cursor.position();
    if (absl::ascii_isdigit(cursor.Peek()) && first && entry->slots == 0) {
      // bsub's and SGE's "host 4 ...": what follows is the queue and processors.
      COORDD_ASSIGN_OR_RETURN(entry->slots, TakeSlots(cursor));
      cursor.TakeWhile([](char) { return true; });
      return absl::OkStatus();
    }
    const absl::string_view name = cursor.TakeWhile(IsNameCharacter);
    cursor.TakeWhile(IsBlank);
    if (!cursor.Take('=')) return cursor.ErrorAt(start, "a word without '='", "slots=N");
    cursor.TakeWhile(IsBlank);
    if (name == "slots" || name == "max_slots" || name == "max-slots") {
      COORDD_ASSIGN_OR_RETURN(const int32_t number, TakeSlots(cursor));
      (name == "slots" ? entry->slots : entry->max_slots) = number;
    } else {
      return cursor.ErrorAt(start, absl::StrCat("\"", name, "\""), "slots=N or max_slots=N");
    }
    first = false;
  }
  return absl::OkStatus();
}

absl::StatusOr<HostSlots> ParseHostFileLine(TextCursor& cursor) {
  HostSlots entry;
  COORDD_ASSIGN_OR_RETURN(entry.host, TakeHost(cursor));
  if (cursor.Take('@')) {
    entry.user = std::move(entry.host);
    COORDD_ASSIGN_OR_RETURN(entry.host, TakeHost(cursor));
  }
  COORDD_RETURN_IF_ERROR(TakeSettings(cursor, &entry));
  return entry;
}

// Calls `take` with a cursor on each line that holds something besides a comment.
template <typename Take>
absl::Status ForEachLine(absl::string_view text, SlotCounts& counts, Take take) {
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string what = absl::StrCat("line ", number, " of the hosts file");
    TextCursor cursor(what, line);
    COORDD_ASSIGN_OR_RETURN(HostSlots entry, take(cursor));
    COORDD_RETURN_IF_ERROR(counts.Add(cursor, 0, std::move(entry)));
  }
  if (counts.empty())
    return absl::InvalidArgumentError("the hosts file names no host, expected one a line");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<HostSlots>> ParseHostsOption(absl::string_view text) {
  TextCursor cursor("the hosts", text);
  SlotCounts counts;
  do {
    cursor.TakeWhile(IsBlank);
    const size_t start = cursor.position();
    COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                            ExpandOptionHost(cursor, start, TakeOptionHost(cursor)));
    int32_t slots = 0;
    if (cursor.Take(':')) {
      COORDD_ASSIGN_OR_RETURN(slots, TakeSlots(cursor));
    }
    for (const std::string& host : hosts)
      COORDD_RETURN_IF_ERROR(counts.Add(cursor, start, {host, slots, 0, ""}));
    cursor.TakeWhile(IsBlank);
  } while (cursor.Take(','));
  if (!cursor.AtEnd()) return cursor.Error(cursor.Here(), "',' or the end");
  return counts.Take();
}

absl::StatusOr<std::vector<HostSlots>> ParseHostCounts(absl::string_view text) {
  TextCursor cursor("the list of hosts and counts", text);
  SlotCounts counts;
  cursor.TakeWhile(IsBlank);
  while (!cursor.AtEnd() || counts.empty()) {
    const size_t start = cursor.position();
    HostSlots entry;
    COORDD_ASSIGN_OR_RETURN(entry.host, TakeHost(cursor));
    if (cursor.TakeWhile(IsBlank).empty()) return cursor.Error(cursor.Here(), "a number of slots");
    COORDD_ASSIGN_OR_RETURN(entry.slots, TakeSlots(cursor));
    COORDD_RETURN_IF_ERROR(counts.Add(cursor, start, std::move(entry)));
    if (cursor.TakeWhile(IsBlank).empty() && !cursor.AtEnd())
      return cursor.Error(cursor.Here(), "white space");
  }
  return counts.Take();
}

absl::StatusOr<std::vector<HostSlots>> ParseHostWords(absl::string_view text) {
  TextCursor cursor("the list of hosts", text);
  SlotCounts counts;
  cursor.TakeWhile(IsBlank);
  while (!cursor.AtEnd() || counts.empty()) {
    const size_t start = cursor.position();
    COORDD_ASSIGN_OR_RETURN(std::string host, TakeHost(cursor));
    COORDD_RETURN_IF_ERROR(counts.Add(cursor, start, {std::move(host), 1, 0, ""}));
    if (cursor.TakeWhile(IsBlank).empty() && !cursor.AtEnd())
      return cursor.Error(cursor.Here(), "white space");
  }
  return counts.Take();
}

absl::StatusOr<std::vector<HostSlots>> ParseHostPerSlotFile(absl::string_view text) {
  SlotCounts counts;
  COORDD_RETURN_IF_ERROR(
      ForEachLine(text, counts, [](TextCursor& cursor) -> absl::StatusOr<HostSlots> {
        COORDD_ASSIGN_OR_RETURN(std::string host, TakeHost(cursor));
        if (!cursor.AtEnd() && !IsBlank(cursor.Peek()))
          return cursor.Error(cursor.Here(), "white space or the end of the line");
        return HostSlots{std::move(host), 1, 0, ""};
      }));
  return counts.Take();
}

absl::StatusOr<std::vector<HostSlots>> ParseHostFile(absl::string_view text) {
  SlotCounts counts;
  COORDD_RETURN_IF_ERROR(ForEachLine(text, counts, ParseHostFileLine));
  return counts.Take();
}

}  // namespace coordd
