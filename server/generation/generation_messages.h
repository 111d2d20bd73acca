// What the members of a generation are told, in one order; and the events that tell of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/process_set_requests.h"
#include "server/generation/readiness_table.h"
#include "server/model/byte_budget.h"
#include "server/model/effects.h"

namespace coordd {

struct GenerationIdentity {
  std::string job;
  Epoch epoch;
  Generation generation;
  bool schedules = false;         // every member executes schedules
  bool device_schedules = false;  // ... of tensors on devices, too
  int64_t slots = 0;  // for the tensors of each process set; 0: a member does not know them
  std::shared_ptr<ByteBudget> budget = nullptr;  // of the job's owner; null: no limit
};

// PURE. Not thread-safe. Makes the messages of one generation, and knows whose sessions they go to.
//
// What several ranks are told, who act on it, has a position; positions grow by one in the order in
// which such messages are sent, so that a rank can say what it has heard.
class GenerationMessages {
 public:
  GenerationMessages(GenerationIdentity identity, std::vector<SessionId> by_rank)
      : identity_(std::move(identity)), by_rank_(std::move(by_rank)) {}
  GenerationMessages(const GenerationMessages&) = delete;
  GenerationMessages& operator=(const GenerationMessages&) = delete;

  const GenerationIdentity& identity() const { return identity_; }
  const std::vector<SessionId>& by_rank() const { return by_rank_; }
  int32_t size() const { return static_cast<int32_t>(by_rank_.size()); }
  SessionId session_of(Rank rank) const { return by_rank_[static_cast<size_t>(rank.value)]; }
  std::vector<SessionId> SessionsOf(const std::vector<Rank>& ranks) const;

  std::shared_ptr<v1::CoordinatorMessage> New() const;
  std::shared_ptr<v1::CoordinatorMessage> NewOrdered();  // with the next position
  void RestorePosition(int64_t position) { position_ = position; }

  void DeliverChange(const v1::ProcessSetChange& change, std::vector<SessionId> to,
                     Effects& effects);
  void DeliverRefusals(const std::vector<FailedRequest>& failed, Effects& effects);
  void DeliverFailures(const std::vector<FailedTensor>& failed, Effects& effects) const;

  // `text` may have several lines.
  void Emit(Event::Kind kind, absl::string_view text, int64_t tensors, absl::StatusCode code,
            Effects& effects) const;
  void Emit(Event::Kind kind, absl::string_view text, Effects& effects, int64_t tensors = 0) const {
    Emit(kind, text, tensors, absl::StatusCode::kOk, effects);
  }

 private:
  void NoteFailures(const std::vector<FailedTensor>& failed, Effects& effects) const;

  const GenerationIdentity identity_;
  const std::vector<SessionId> by_rank_;
  int64_t position_ = 0;  // of the last NewOrdered
};

// " (process set 3)", behind a sentence; empty for set 0.
std::string OfSet(ProcessSetId set);

}  // namespace coordd
