#include "worker/execute/worker_errors.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/one_line.h"

namespace coordd {
namespace {

// Payloads of a status.
constexpr char kGenerationChanged[] = "coordd/generation-changed";
constexpr char kByGoodbyes[] = "coordd/by-goodbyes";

absl::string_view Verb(v1::DepartureCause cause) {
  switch (cause) {
    case v1::DEPARTURE_CAUSE_LEFT:
      return "left";
    case v1::DEPARTURE_CAUSE_EVICTED:
      return "was evicted";
    case v1::DEPARTURE_CAUSE_FAILED:
    case v1::DEPARTURE_CAUSE_PROGRAM_FAILED:
      return "failed";
    case v1::DEPARTURE_CAUSE_PROTOCOL_ERROR:
      return "broke the protocol";
    case v1::DEPARTURE_CAUSE_DRAINED:
      return "was drained";
    default:
      return "was lost";
  }
}

// coordd's detail is usually a predicate: "was lost: its connection closed without a goodbye".
bool IsPredicate(const std::string& detail) {
  return absl::StartsWith(detail, "left") || absl::StartsWith(detail, "was ") ||
         absl::StartsWith(detail, "failed: ");
}

}  // namespace

std::string DepartureText(const v1::Departure& departure) {
  const std::string detail = OneLine(departure.detail());
  const std::string who =
      absl::StrCat("rank ", departure.rank(), " (host ", OneLine(departure.hostname()), ", pid ",
                   departure.pid(), ") ");
  if (IsPredicate(detail)) return absl::StrCat(who, detail);
  return absl::StrCat(who, Verb(departure.cause()), detail.empty() ? "" : ": ", detail);
}

absl::Status GenerationEndedBy(Generation generation, const v1::Abort& abort) {
  if (abort.departures().empty()) {
    return GenerationEndedError(generation, abort.reason().empty()
                                                ? "coordd ended it, and did not say why"
                                                : OneLine(abort.reason()));
  }
  std::vector<std::string> texts;
  for (const v1::Departure& departure : abort.departures()) {
    if (texts.size() == kMaxDeparturesNamed) break;
    texts.push_back(DepartureText(departure));
  }
  const int unnamed = abort.departures_size() - kMaxDeparturesNamed;
  if (unnamed > 0) texts.push_back(absl::StrCat("and ", unnamed, " more"));
  absl::Status ended = GenerationEndedError(generation, absl::StrJoin(texts, "; "));
  if (!abort.in_flight()) ended.SetPayload(kByGoodbyes, absl::Cord());
  return ended;
}

bool IsByGoodbyes(const absl::Status& status) { return status.GetPayload(kByGoodbyes).has_value(); }

absl::Status GenerationEndedError(Generation generation, absl::string_view why,
                                  absl::StatusCode code) {
  const std::string prefix = absl::StrCat("generation ", ToInt(generation), " ended: ");
  absl::ConsumePrefix(&why, prefix);  // coordd may have said so
  return absl::Status(code, absl::StrCat(prefix, why));
}

absl::Status GenerationChanged(absl::Status status) {
  status.SetPayload(kGenerationChanged, absl::Cord());
  return status;
}

bool IsGenerationChanged(const absl::Status& status) {
  return status.GetPayload(kGenerationChanged).has_value();
}

absl::Status ForTensor(const std::string& name, const absl::Status& status) {
  const std::string prefix = absl::StrCat("tensor ", name, ": ");
  if (status.ok() || absl::StartsWith(status.message(), prefix)) return status;
  absl::Status named(status.code(), absl::StrCat(prefix, status.message()));
  return IsGenerationChanged(status) ? GenerationChanged(std::move(named)) : named;
}

absl::Status TensorFailureError(Generation generation, const v1::TensorFailure& failure) {
  const bool known = failure.code() > 0 && failure.code() <= 16;
  const auto code =
      known ? static_cast<absl::StatusCode>(failure.code()) : absl::StatusCode::kInternal;
  return ForTensor(failure.name(),
                   absl::Status(code, absl::StrCat(OneLine(failure.message()), " (generation ",
                                                   ToInt(generation), ")")));
}

std::string StoppingText(const v1::Shutdown& shutdown) {
  return shutdown.reason().empty() ? "coordd is stopping" : OneLine(shutdown.reason());
}

std::string SecondsText(absl::Duration duration) {
  // Milliseconds are enough for a person.
  return absl::StrCat(static_cast<double>(absl::ToInt64Milliseconds(duration)) / 1000, " s");
}

}  // namespace coordd
