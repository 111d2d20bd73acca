// What a generation plans: of each process set what is ready, in batches; and how much that was.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/generation_messages.h"
#include "server/generation/generation_schedules.h"
#include "server/generation/negotiated_sets.h"
#include "server/model/effects.h"
#include "server/model/turn.h"

namespace coordd {

// PURE. Not thread-safe.
//
// The batches of a set are numbered in the order in which their plans are sent, and all that
// becomes ready in one turn is planned together.
class GenerationPlans {
 public:
  // All outlive it.
  GenerationPlans(int64_t max_batch_bytes, GenerationMessages& messages, NegotiatedSets& sets,
                  GenerationSchedules& schedules)
      : max_batch_bytes_(max_batch_bytes),
        messages_(messages),
        sets_(sets),
        schedules_(schedules) {}

  // Tensors have been reported, for the next plan's event.
  void CountBySpec(int64_t reports) { reported_by_spec_ += reports; }
  void CountBySlot(int64_t reports) { reported_by_slot_ += reports; }

  void PlanReady(const Turn& turn);  // of all sets
  void Plan(SetNegotiation& set, const Turn& turn);
  void PlanJoin(Rank last, Effects& effects);  // all have joined, this one last

  int64_t batches() const { return batches_; }
  int64_t tensors() const { return tensors_; }
  int64_t bytes() const { return bytes_; }

 private:
  // A plan in the making: the messages that have gone out of it are not in it any more.
  struct Draft {
    std::shared_ptr<v1::CoordinatorMessage> message;
    int64_t bytes = 0;                             // of the message, about
    std::vector<const ReadyTensor*> unknown = {};  // tensors in it that have no slot
    int64_t most_staged = 0;                       // bytes of a batch, of the whole plan
  };
  void Add(SetNegotiation& set, const std::vector<ReadyTensor>& ready,
           const std::vector<size_t>& batch, Draft& draft);
  static void Send(SetNegotiation& set, Draft& draft, Effects& effects);
  void AnnouncePair(SetNegotiation& set, Effects& effects);
  void Note(SetNegotiation& set, const std::vector<ReadyTensor>& ready, size_t batches,
            const Turn& turn);

  const int64_t max_batch_bytes_;
  GenerationMessages& messages_;
  NegotiatedSets& sets_;
  GenerationSchedules& schedules_;
  int64_t reported_by_spec_ = 0, reported_by_slot_ = 0;  // tensors, since the last plan
  int64_t batches_ = 0, tensors_ = 0, bytes_ = 0;        // planned
};

}  // namespace coordd
