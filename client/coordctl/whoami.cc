#include "client/coordctl/whoami.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/launch/host_list.h"
#include "common/net/address.h"

namespace coordd {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(int32_t number) { return number < 0 ? Json() : Json(number); }

std::string OfText(int32_t number, int32_t total) {
  if (number < 0) return total < 0 ? "" : absl::StrCat("? of ", total);
  return total < 0 ? absl::StrCat(number) : absl::StrCat(number, " of ", total);
}

std::string HintText(const CoordinatorHint& hint) {
  return absl::StrCat(hint.port == 0 ? hint.host : HostPort{hint.host, hint.port}.ToString(), " (",
                      hint.source, ")");
}

std::string ConnectionText(const WorkerConnection& connection) {
  if (!connection.tls.enabled())
    return "without TLS: none of COORDD_TLS_CA, COORDD_TLS_CERT and COORDD_TLS_KEY is set";
  if (!connection.problem.empty()) return absl::StrCat("TLS, which fails: ", connection.problem);
  return absl::StrCat("TLS, as ", connection.who, " (", connection.tls.cert, "), signed by ",
                      connection.authority, ", valid until ", connection.end,
                      "; coordd's certificate must be of the authority in ", connection.tls.ca,
                      connection.trusted.empty() ? "" : absl::StrCat(", ", connection.trusted));
}

Json ConnectionJson(const WorkerConnection& connection) {
  if (!connection.tls.enabled()) return {{"tls", false}};
  return {{"tls", true},
          {"certificate", connection.tls.cert},
          {"who", connection.who},
          {"authority", connection.authority},
          {"valid_until", connection.end},
          {"trusts", connection.tls.ca},
          {"trusted_authority", connection.trusted},
          {"problem", connection.problem}};
}

}  // namespace

std::string WhoamiText(const LaunchPlace& place, const std::string& coordinator,
                       const WorkerConnection& connection) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"launcher", absl::StrCat(place.launcher, ": ", place.title, "; ", place.why)},
      {place.node_level ? "rank (node)" : "rank", OfText(place.rank, place.size)},
      {"local rank", OfText(place.local_rank, place.local_size)},
      {"node", OfText(place.node_rank, place.nodes)},
      {"job", place.job_id},
      {"hosts", CompressHostList(place.hosts)},
      {"topology", absl::StrJoin(place.topology, "/")},
      {"visible GPUs", place.visible_gpus < 0 ? "" : absl::StrCat(place.visible_gpus)},
      {"coordinator", coordinator},
      {"connection", ConnectionText(connection)},
      {"not a rank", place.not_a_rank},
      {"seen here",
       "in variables and files of this machine; no coordd was asked ('coordctl status' asks one)"}};
  for (const CoordinatorHint& hint : place.coordinator_hints)
    rows.emplace_back("address", HintText(hint));
  for (const std::string& note : place.notes) rows.emplace_back("also seen", note);
  for (const std::string& warning : place.warnings) rows.emplace_back("warning", warning);
  std::string text;
  for (const auto& [name, value] : rows)
    if (!value.empty()) absl::StrAppend(&text, absl::StrFormat("%-13s", name), value, "\n");
  return text;
}

std::string WhoamiJson(const LaunchPlace& place, const std::string& coordinator,
                       const WorkerConnection& connection) {
  Json hints = Json::array();
  for (const CoordinatorHint& hint : place.coordinator_hints)
    hints.push_back({{"host", hint.host}, {"port", hint.port}, {"source", hint.source}});
  const Json json = {{"launcher", place.launcher},
                     {"title", place.title},
                     {"why", place.why},
                     {"rank", OrNull(place.rank)},
                     {"size", OrNull(place.size)},
                     {"local_rank", OrNull(place.local_rank)},
                     {"local_size", OrNull(place.local_size)},
                     {"node_rank", OrNull(place.node_rank)},
                     {"nodes", OrNull(place.nodes)},
                     {"node_level", place.node_level},
                     {"not_a_rank", place.not_a_rank},
                     {"job_id", place.job_id},
                     {"hosts", place.hosts},
                     {"topology", place.topology},
                     {"visible_gpus", OrNull(place.visible_gpus)},
                     {"coordinator", coordinator},
                     {"connection", ConnectionJson(connection)},
                     {"addresses", std::move(hints)},
                     {"notes", place.notes},
                     {"warnings", place.warnings},
                     {"asked_coordd", false}};
  // Variables may hold bytes that are no UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status WhoamiOfACoordd(const std::string& coordinator) {
  return absl::InvalidArgumentError(absl::StrCat(
      "found --coordinator ", coordinator,
      ", but whoami asks no coordd: it tells what the variables and certificates of this machine "
      "say; 'coordctl status --coordinator ",
      coordinator, "' tells whether that one lets you in"));
}

}  // namespace coordd
