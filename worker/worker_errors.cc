#include "worker/worker_errors.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {
namespace {

absl::string_view Verb(v1::DepartureCause cause) {
  switch (cause) {
    case v1::DEPARTURE_CAUSE_LEFT:
      return "left";
    case v1::DEPARTURE_CAUSE_EVICTED:
      return "was evicted";
    case v1::DEPARTURE_CAUSE_FAILED:
      return "failed";
    case v1::DEPARTURE_CAUSE_PROTOCOL_ERROR:
      return "broke the protocol";
    default:
      return "was lost";
  }
}

}  // namespace

std::string DepartureText(const v1::Departure& departure) {
  std::string text = absl::StrCat("rank ", departure.rank(), " (host ", departure.hostname(),
                                  ", pid ", departure.pid(), ") ", Verb(departure.cause()));
  if (!departure.detail().empty()) absl::StrAppend(&text, ": ", departure.detail());
  return text;
}

absl::Status GenerationEndedBy(Generation generation, const v1::Abort& abort) {
  if (abort.departures().empty()) {
    return GenerationEndedError(generation, abort.reason().empty()
                                                ? "coordd ended it, and did not say why"
                                                : abort.reason());
  }
  std::vector<std::string> texts;
  for (const v1::Departure& departure : abort.departures()) {
    if (texts.size() == kMaxDeparturesNamed) break;
    texts.push_back(DepartureText(departure));
  }
  const int unnamed = abort.departures_size() - kMaxDeparturesNamed;
  if (unnamed > 0) texts.push_back(absl::StrCat("and ", unnamed, " more"));
  return GenerationEndedError(generation, absl::StrJoin(texts, "; "));
}

absl::Status GenerationEndedError(Generation generation, absl::string_view why,
                                  absl::StatusCode code) {
  return absl::Status(code, absl::StrCat("generation ", ToInt(generation), " ended: ", why));
}

absl::Status ForTensor(const std::string& name, const absl::Status& status) {
  const std::string prefix = absl::StrCat("tensor ", name, ": ");
  if (status.ok() || absl::StartsWith(status.message(), prefix)) return status;
  return absl::Status(status.code(), absl::StrCat(prefix, status.message()));
}

absl::Status TensorFailureError(Generation generation, const v1::TensorFailure& failure) {
  const bool known = failure.code() > 0 && failure.code() <= 16;
  const auto code =
      known ? static_cast<absl::StatusCode>(failure.code()) : absl::StatusCode::kInternal;
  return ForTensor(
      failure.name(),
      absl::Status(code, absl::StrCat(failure.message(), " (generation ", ToInt(generation), ")")));
}

std::string SecondsText(absl::Duration duration) {
  // Three significant decimals are enough for a person.
  const double seconds = absl::ToDoubleSeconds(duration);
  return absl::StrCat(static_cast<double>(static_cast<int64_t>(seconds * 1000)) / 1000, " s");
}

}  // namespace coordd
