#include "common/launch/host_list.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text_cursor.h"

namespace coordd {
namespace {

constexpr absl::string_view kWhat = "the host list";
// Eighteen digits fit; no machine has more.
constexpr uint64_t kMaxHostNumber = 999'999'999'999'999'999u;
// More than a node has tasks.
constexpr uint64_t kMaxTasks = 1'000'000;

bool IsHostCharacter(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; }
bool IsSeparator(char c) { return c == ',' || absl::ascii_isspace(c); }

struct Range {
  uint64_t low = 0;
  uint64_t high = 0;
  size_t width = 0;  // digits, with leading zeros
};

// A literal, or brackets.
struct Part {
  std::string literal;
  std::vector<Range> ranges;  // empty: the literal

  uint64_t count() const {
    if (ranges.empty()) return 1;
    uint64_t sum = 0;
    for (const Range& range : ranges) sum += range.high - range.low + 1;
    return sum;
  }
};

absl::StatusOr<Range> TakeRange(TextCursor& cursor) {
  const size_t start = cursor.position();
  COORDD_ASSIGN_OR_RETURN(const auto low, cursor.TakeNumber("a number", kMaxHostNumber));
  Range range{low.value, low.value, low.digits.size()};
  if (cursor.Peek() == 'x') {
    return cursor.ErrorAt(start, "a prism of several dimensions (Blue Gene)",
                          "ranges such as [0-3,7]; prisms are not supported");
  }
  if (!cursor.Take('-')) return range;
  COORDD_ASSIGN_OR_RETURN(const auto high, cursor.TakeNumber("a number", kMaxHostNumber));
  range.high = high.value;
  if (range.high < range.low) {
    return cursor.ErrorAt(start, absl::StrCat("the range ", low.digits, "-", high.digits),
                          "one that does not run backwards");
  }
  return range;
}

// Behind the opening bracket.
absl::StatusOr<Part> TakeBrackets(TextCursor& cursor) {
  Part part;
  uint64_t count = 0;
  do {
    const size_t start = cursor.position();
    COORDD_ASSIGN_OR_RETURN(const Range range, TakeRange(cursor));
    const uint64_t size = range.high - range.low + 1;
    if (size > kMaxHosts || count + size > kMaxHosts) {
      return cursor.ErrorAt(start, absl::StrCat("a range of ", size, " hosts"),
                            absl::StrCat("at most ", kMaxHosts, " in all"));
    }
    count += size;
    part.ranges.push_back(range);
  } while (cursor.Take(','));
  if (!cursor.Take(']')) return cursor.Error(cursor.Here(), "',' or ']'");
  return part;
}

absl::StatusOr<std::vector<Part>> TakeItem(TextCursor& cursor) {
  std::vector<Part> parts;
  const size_t start = cursor.position();
  while (!cursor.AtEnd() && !IsSeparator(cursor.Peek())) {
    if (cursor.Take('[')) {
      COORDD_ASSIGN_OR_RETURN(Part part, TakeBrackets(cursor));
      parts.push_back(std::move(part));
      continue;
    }
    const absl::string_view literal = cursor.TakeWhile(IsHostCharacter);
    if (literal.empty())
      return cursor.Error(cursor.Here(), "letters, digits, '.', '_', '-' or '['");
    if (literal.size() > kMaxHostNameBytes) {
      return cursor.Error(absl::StrCat("a name of ", literal.size(), " bytes"),
                          absl::StrCat("at most ", kMaxHostNameBytes));
    }
    // ssh, scp and others would take it for an option.
    if (parts.empty() && literal[0] == '-')
      return cursor.ErrorAt(start, "a name that begins with '-'", "a letter, a digit or '_' there");
    parts.push_back({std::string(literal), {}});
  }
  if (parts.empty()) return cursor.Error(cursor.Here(), "a host");
  return parts;
}

// All combinations from part `index` on, the last part fastest.
void Append(absl::Span<const Part> parts, const std::string& prefix,
            std::vector<std::string>* hosts) {
  if (parts.empty()) {
    hosts->push_back(prefix);
    return;
  }
  const Part& part = parts.front();
  if (part.ranges.empty()) return Append(parts.subspan(1), prefix + part.literal, hosts);
  for (const Range& range : part.ranges) {
    for (uint64_t number = range.low; number <= range.high; ++number) {
      Append(parts.subspan(1),
             prefix + absl::StrFormat("%0*u", static_cast<int>(range.width), number), hosts);
    }
  }
}

// Checks the size of what `parts` stand for before any memory is spent on it.
absl::Status CheckBounds(const TextCursor& cursor, size_t start, absl::Span<const Part> parts,
                         size_t hosts_before, size_t* bytes) {
  uint64_t count = 1;
  size_t longest = 0;
  for (const Part& part : parts) {
    count *= part.count();  // both factors are at most kMaxHosts
    if (count > kMaxHosts) break;
    size_t widest = part.literal.size();
    for (const Range& range : part.ranges)
      widest = std::max(widest, std::max(range.width, absl::StrCat(range.high).size()));
    longest += widest;
  }
  if (count > kMaxHosts - hosts_before) {
    return cursor.ErrorAt(start, "more hosts than that", absl::StrCat("at most ", kMaxHosts));
  }
  if (longest > kMaxHostNameBytes) {
    return cursor.ErrorAt(start, absl::StrCat("a name of ", longest, " bytes"),
                          absl::StrCat("at most ", kMaxHostNameBytes));
  }
  *bytes += count * longest;
  if (*bytes > kMaxHostListBytes) {
    return cursor.ErrorAt(start, "names that take more memory than that",
                          absl::StrCat("at most ", kMaxHostListBytes, " bytes in all"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view text) {
  TextCursor cursor(kWhat, text);
  std::vector<std::string> hosts;
  size_t bytes = 0;
  cursor.TakeWhile(absl::ascii_isspace);
  do {
    const size_t start = cursor.position();
    COORDD_ASSIGN_OR_RETURN(const std::vector<Part> parts, TakeItem(cursor));
    COORDD_RETURN_IF_ERROR(CheckBounds(cursor, start, parts, hosts.size(), &bytes));
    Append(parts, "", &hosts);
    const bool space = !cursor.TakeWhile(absl::ascii_isspace).empty();
    if (cursor.AtEnd()) break;
    if (cursor.Take(',')) {
      cursor.TakeWhile(absl::ascii_isspace);
    } else if (!space) {
      return cursor.Error(cursor.Here(), "',' or white space");
    }
  } while (true);
  return hosts;
}

std::string CompressHostList(absl::Span<const std::string> hosts) {
  struct Split {
    absl::string_view prefix, digits;
    uint64_t number = 0;
  };
  const auto split = [](absl::string_view host) {
    size_t start = host.size();
    // Eighteen digits at most, so that the number fits and comes back the same.
    while (start > 0 && absl::ascii_isdigit(host[start - 1]) && host.size() - start < 18) --start;
    Split result{host.substr(0, start), host.substr(start), 0};
    if (!result.digits.empty() && !absl::SimpleAtoi(result.digits, &result.number))
      result.digits = "";
    return result;
  };
  std::string text;
  size_t i = 0;
  while (i < hosts.size()) {
    const Split first = split(hosts[i]);
    // The hosts that share a pair of brackets, and the ranges inside.
    std::vector<std::string> ranges;
    size_t end = i;
    while (end < hosts.size() && !first.digits.empty()) {
      const Split low = split(hosts[end]);
      if (low.digits.empty() || low.prefix != first.prefix) break;
      size_t last = end;
      while (last + 1 < hosts.size()) {
        const Split next = split(hosts[last + 1]);
        if (next.prefix != low.prefix || next.digits.size() != low.digits.size() ||
            next.number != low.number + (last + 1 - end))
          break;
        ++last;
      }
      ranges.push_back(last == end ? std::string(low.digits)
                                   : absl::StrCat(low.digits, "-", split(hosts[last]).digits));
      end = last + 1;
    }
    absl::StrAppend(&text, text.empty() ? "" : ",");
    if (end <= i + 1) {
      absl::StrAppend(&text, hosts[i]);
      ++i;
      continue;
    }
    absl::StrAppend(&text, first.prefix, "[");
    for (size_t r = 0; r < ranges.size(); ++r) absl::StrAppend(&text, r > 0 ? "," : "", ranges[r]);
    absl::StrAppend(&text, "]");
    i = end;
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> ExpandTasksPerNode(absl::string_view text) {
  TextCursor cursor("the tasks per node", text);
  std::vector<int32_t> tasks;
  do {
    const size_t start = cursor.position();
    COORDD_ASSIGN_OR_RETURN(const auto count, cursor.TakeNumber("a number of tasks", kMaxTasks));
    uint64_t nodes = 1;
    if (cursor.Take('(')) {
      if (!cursor.Take('x')) return cursor.Error(cursor.Here(), "'x'");
      const size_t times = cursor.position();
      COORDD_ASSIGN_OR_RETURN(const auto repeat, cursor.TakeNumber("a number of nodes", kMaxHosts));
      nodes = repeat.value;
      if (nodes == 0) return cursor.ErrorAt(times, "0 nodes", "at least 1");
      if (!cursor.Take(')')) return cursor.Error(cursor.Here(), "')'");
    }
    if (count.value == 0) return cursor.ErrorAt(start, "0 tasks", "at least 1");
    if (nodes > kMaxHosts - tasks.size()) {
      return cursor.ErrorAt(start, "more nodes than that", absl::StrCat("at most ", kMaxHosts));
    }
    tasks.insert(tasks.end(), nodes, static_cast<int32_t>(count.value));
  } while (cursor.Take(','));
  if (!cursor.AtEnd()) return cursor.Error(cursor.Here(), "',' or '(x'");
  return tasks;
}

absl::StatusOr<std::vector<int32_t>> ParseTopologyShape(absl::string_view text) {
  constexpr size_t kMaxFactors = 8;  // as many labels as a topology may have
  TextCursor cursor("the topology", text);
  std::vector<int32_t> factors;
  do {
    const size_t start = cursor.position();
    COORDD_ASSIGN_OR_RETURN(const auto factor, cursor.TakeNumber("a number", kMaxHosts));
    if (factor.value == 0) return cursor.ErrorAt(start, "0", "at least 1");
    if (factors.size() == kMaxFactors) {
      return cursor.ErrorAt(start, "one more factor",
                            absl::StrCat("at most ", kMaxFactors, " factors"));
    }
    factors.push_back(static_cast<int32_t>(factor.value));
  } while (cursor.Take('x'));
  if (!cursor.AtEnd()) return cursor.Error(cursor.Here(), "'x' and the next factor");
  return factors;
}

std::string ShortHostName(absl::string_view host) {
  const bool address = absl::StrContains(host, ':') ||
                       std::all_of(host.begin(), host.end(),
                                   [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
  return absl::AsciiStrToLower(address ? host : host.substr(0, host.find('.')));
}

bool SameHost(absl::string_view a, absl::string_view b) {
  // Names of interfaces that sites give hosts beside their own: node1-ib0, x1000-hsn1.
  const auto base = [](absl::string_view host) {
    std::string name = ShortHostName(host);
    const size_t dash = name.rfind('-');
    if (dash == std::string::npos) return name;
    absl::string_view suffix = absl::string_view(name).substr(dash + 1);
    for (const char* kind : {"ib", "hsn", "eth", "opa", "roce"}) {
      absl::string_view rest = suffix;
      if (!absl::ConsumePrefix(&rest, kind)) continue;
      if (std::all_of(rest.begin(), rest.end(), absl::ascii_isdigit)) return name.substr(0, dash);
    }
    return name;
  };
  return base(a) == base(b);
}

}  // namespace coordd
