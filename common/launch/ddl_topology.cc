#include "common/launch/ddl_topology.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/text_cursor.h"

namespace coordd {
namespace {

constexpr uint64_t kMaxRank = 1 << 30;

// Each of 0 to n - 1 stands there once.
absl::Status CheckRanks(const std::vector<DdlHost>& hosts) {
  std::vector<int32_t> ranks;
  for (const DdlHost& host : hosts) ranks.insert(ranks.end(), host.ranks.begin(), host.ranks.end());
  std::sort(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == static_cast<int32_t>(i)) continue;
    const bool twice = i > 0 && ranks[i] == ranks[i - 1];
    return absl::InvalidArgumentError(absl::StrCat(
        "DDL_HOST_LIST: rank ",
        twice ? absl::StrCat(ranks[i], " is there twice") : absl::StrCat(i, " is on no host"),
        ", expected each of 0 to ", ranks.size() - 1, " once"));
  }
  return absl::OkStatus();
}

std::string LevelText(int32_t number) { return number > 0 ? absl::StrCat(number) : "?"; }

// "rack02" of 18.
std::string Label(absl::string_view level, size_t number, int32_t of) {
  const int width = static_cast<int>(absl::StrCat(of).size());
  return absl::StrCat(level, absl::StrFormat("%0*d", width, number + 1));
}

}  // namespace

absl::StatusOr<DdlShape> ParseDdlMode(absl::string_view text) {
  TextCursor cursor("the mode", text);
  const absl::string_view algorithm = cursor.TakeWhile(
      [](char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; });
  if (algorithm.empty()) return cursor.Error(cursor.Here(), "a mode of DDL, such as p:6x2x1x1");
  DdlShape shape;
  if (cursor.AtEnd()) return shape;
  if (!cursor.Take(':')) return cursor.Error(cursor.Here(), "':' and accelerators x nodes");
  int32_t* const levels[] = {&shape.accelerators, &shape.nodes, &shape.racks, &shape.aisles};
  size_t said = 0;
  do {
    const size_t start = cursor.position();
    COORDD_ASSIGN_OR_RETURN(const auto number, cursor.TakeNumber("a number", kMaxHosts));
    if (number.value == 0) return cursor.ErrorAt(start, "0", "at least 1");
    if (said == std::size(levels))
      return cursor.ErrorAt(start, "one more number",
                            "accelerators x nodes x racks x aisles, no more");
    *levels[said++] = static_cast<int32_t>(number.value);
  } while (cursor.Take('x'));
  if (!cursor.AtEnd()) return cursor.Error(cursor.Here(), "'x' and the next number");
  for (; said < std::size(levels); ++said) *levels[said] = 1;
  return shape;
}

std::string DdlModeIn(absl::string_view options) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(options, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (!absl::ConsumePrefix(&word, "--mode") && !absl::ConsumePrefix(&word, "-mode")) continue;
    if (absl::ConsumePrefix(&word, "=")) return std::string(word);
    if (word.empty() && i + 1 < words.size()) return std::string(words[i + 1]);
  }
  return "";
}

absl::StatusOr<std::vector<DdlHost>> ParseDdlHostList(absl::string_view text) {
  TextCursor cursor("DDL_HOST_LIST", text);
  std::vector<DdlHost> hosts;
  while (!cursor.AtEnd()) {
    DdlHost host;
    host.host = std::string(cursor.TakeWhile([](char c) { return c != ':' && c != ';'; }));
    if (host.host.empty()) return cursor.Error(cursor.Here(), "a host");
    if (!cursor.Take(':')) return cursor.Error(cursor.Here(), "':' and the host's ranks");
    do {
      COORDD_ASSIGN_OR_RETURN(const auto rank, cursor.TakeNumber("a rank", kMaxRank));
      host.ranks.push_back(static_cast<int32_t>(rank.value));
    } while (cursor.Take(','));
    hosts.push_back(std::move(host));
    if (!cursor.AtEnd() && !cursor.Take(';')) return cursor.Error(cursor.Here(), "',' or ';'");
  }
  if (hosts.empty()) return cursor.Error("no host", "host:rank,rank;host:rank");
  COORDD_RETURN_IF_ERROR(CheckRanks(hosts));
  return hosts;
}

absl::StatusOr<DdlShape> FillDdlShape(DdlShape shape, size_t hosts) {
  const std::string asked = DdlShapeText(shape);
  if (shape.aisles == 0) shape.aisles = 1;
  if (shape.racks == 0) shape.racks = 1;
  const int64_t racks = int64_t{shape.racks} * shape.aisles;
  const auto count = static_cast<int64_t>(hosts);
  if (shape.nodes == 0 && count % racks == 0) shape.nodes = static_cast<int32_t>(count / racks);
  // Divided, since the product of three may not fit.
  const bool fills = shape.nodes > 0 && count % racks == 0 && count / racks == shape.nodes;
  if (fills) return shape;
  return absl::InvalidArgumentError(absl::StrCat(
      "the topology ", asked, " (accelerators x nodes x racks x aisles) and ", hosts,
      hosts == 1 ? " host" : " hosts",
      ": expected nodes x racks x aisles to be as many hosts; nodes are those of one rack, racks "
      "those of one aisle"));
}

std::string DdlShapeText(const DdlShape& shape) {
  return absl::StrCat(LevelText(shape.accelerators), "x", LevelText(shape.nodes), "x",
                      LevelText(shape.racks), "x", LevelText(shape.aisles));
}

std::vector<std::string> DdlLabels(const DdlShape& shape, size_t position) {
  const size_t rack = position / static_cast<size_t>(shape.nodes);
  const auto racks = static_cast<size_t>(shape.racks);
  std::vector<std::string> labels;
  if (shape.aisles > 1) labels.push_back(Label("aisle", rack / racks, shape.aisles));
  if (shape.racks > 1) labels.push_back(Label("rack", rack % racks, shape.racks));
  return labels;
}

absl::StatusOr<std::vector<std::string>> DdlLabelsOfRank(absl::string_view ddl_options,
                                                         absl::string_view ddl_host_list,
                                                         int32_t rank) {
  COORDD_ASSIGN_OR_RETURN(const DdlShape asked, ParseDdlMode(DdlModeIn(ddl_options)));
  COORDD_ASSIGN_OR_RETURN(const std::vector<DdlHost> hosts, ParseDdlHostList(ddl_host_list));
  COORDD_ASSIGN_OR_RETURN(const DdlShape shape, FillDdlShape(asked, hosts.size()));
  for (size_t i = 0; i < hosts.size(); ++i) {
    const std::vector<int32_t>& ranks = hosts[i].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return DdlLabels(shape, i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("DDL_HOST_LIST: rank ", rank, " is on no host of it"));
}

}  // namespace coordd
