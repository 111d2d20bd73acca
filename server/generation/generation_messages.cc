#include "server/generation/generation_messages.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/one_line.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/validate_message.h"

namespace coordd {

std::string OfSet(ProcessSetId set) {
  return set == ProcessSetId{0} ? "" : absl::StrCat(" (process set ", ToInt(set), ")");
}

std::vector<SessionId> GenerationMessages::SessionsOf(const std::vector<Rank>& ranks) const {
  std::vector<SessionId> sessions;
  sessions.reserve(ranks.size());
  for (Rank rank : ranks) sessions.push_back(session_of(rank));
  return sessions;
}

std::shared_ptr<v1::CoordinatorMessage> GenerationMessages::New() const {
  auto message = std::make_shared<v1::CoordinatorMessage>();
  message->set_epoch(ToInt(identity_.epoch));
  message->set_generation(ToInt(identity_.generation));
  return message;
}

std::shared_ptr<v1::CoordinatorMessage> GenerationMessages::NewOrdered() {
  auto message = New();
  message->set_position(++position_);
  return message;
}

void GenerationMessages::DeliverChange(const v1::ProcessSetChange& change,
                                       std::vector<SessionId> to, Effects& effects) {
  // A refusal changes nothing, and may be owed to others still.
  std::shared_ptr<v1::CoordinatorMessage> message = change.code() == 0 ? NewOrdered() : New();
  *message->mutable_process_set_change() = change;
  effects.outgoing.push_back(Deliver{std::move(to), std::move(message)});
}

void GenerationMessages::DeliverRefusals(const std::vector<FailedRequest>& failed,
                                         Effects& effects) {
  for (const FailedRequest& failure : failed) {
    v1::ProcessSetChange change;
    change.set_request(failure.number);
    change.set_name(failure.name);
    change.set_code(static_cast<int>(failure.fault.status.code()));
    change.set_message(Truncated(failure.fault.status.message(), 4 * kMaxReasonBytes));
    DeliverChange(change, SessionsOf(failure.ranks), effects);
    Emit(Event::Kind::kProcessSetRefused, failure.fault.status.message(), 0,
         failure.fault.status.code(), effects);
  }
}

// Consecutive failures for the same ranks share a message.
void GenerationMessages::DeliverFailures(const std::vector<FailedTensor>& failed,
                                         Effects& effects) const {
  size_t i = 0;
  while (i < failed.size()) {
    const std::vector<Rank>& ranks = failed[i].ranks;
    std::shared_ptr<v1::CoordinatorMessage> message = New();
    int64_t bytes = 0;
    for (; i < failed.size() && failed[i].ranks == ranks && bytes < kPlanMessageBytes; ++i) {
      v1::TensorFailure* failure = message->mutable_tensor_failures()->add_failures();
      failure->set_process_set(ToInt(failed[i].process_set));
      failure->set_name(failed[i].name);
      failure->set_code(static_cast<int>(failed[i].fault.status.code()));
      // Two names and two values: room for four times what any other sentence may have.
      failure->set_message(Truncated(failed[i].fault.status.message(), 4 * kMaxReasonBytes));
      failure->set_rank(ToInt(failed[i].fault.blamed));
      bytes += static_cast<int64_t>(failure->ByteSizeLong());
    }
    effects.outgoing.push_back(Deliver{SessionsOf(ranks), std::move(message)});
  }
  NoteFailures(failed, effects);
}

// One event for neighbours with one cause: a group, or everything that one rank withdrew.
void GenerationMessages::NoteFailures(const std::vector<FailedTensor>& failed,
                                      Effects& effects) const {
  for (size_t i = 0; i < failed.size();) {
    const TensorFault& fault = failed[i].fault;
    size_t end = i + 1;
    while (end < failed.size() && failed[end].fault.status.code() == fault.status.code() &&
           failed[end].fault.blamed == fault.blamed &&
           failed[end].process_set == failed[i].process_set) {
      ++end;
    }
    const int64_t count = static_cast<int64_t>(end - i);
    Emit(Event::Kind::kTensorFailed,
         absl::StrCat(fault.status.message(),
                      count == 1 ? "" : absl::StrCat(" (and ", count - 1, " more tensors)"),
                      absl::StrContains(fault.status.message(), "process set")
                          ? ""
                          : OfSet(failed[i].process_set)),
         count, fault.status.code(), effects);
    i = end;
  }
}

void GenerationMessages::Emit(Event::Kind kind, absl::string_view text, int64_t tensors,
                              absl::StatusCode code, Effects& effects) const {
  Event event{.kind = kind, .job = identity_.job};
  event.generation = ToInt(identity_.generation);
  event.code = code;
  event.text = OneLine(text);
  event.tensors = tensors;
  effects.events.push_back(std::move(event));
}

}  // namespace coordd
