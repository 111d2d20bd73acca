#include "server/job/missed_telling.h"

#include <algorithm>
#include <functional>
#include <memory>

namespace coordd {
namespace {

// To copy a message, and to carry it to those who lack it, takes as long as so many entries.
constexpr int64_t kEntriesOfMessage = 4;

}  // namespace

MissedTelling::MissedTelling(MissedMessages& missed, std::vector<SessionId> by_rank,
                             const v1::CoordinatorMessage& head)
    : missed_(missed), by_rank_(std::move(by_rank)), head_(head), told_(missed.size()) {
  for (size_t rank = 0; rank < missed_.size(); ++rank)
    if (by_rank_[rank] != SessionId{0}) Await(rank);
}

void MissedTelling::Await(size_t rank) {
  const size_t at = told_[rank];
  if (at == missed_[rank].size()) return;
  next_.emplace_back(missed_[rank][at]->position(), rank);
  std::push_heap(next_.begin(), next_.end(), std::greater<>());
}

bool MissedTelling::Continue(int64_t entries, Effects& effects) {
  while (!next_.empty() && entries > 0) entries -= TellNext(effects);
  return next_.empty();
}

int64_t MissedTelling::TellNext(Effects& effects) {
  const int64_t position = next_.front().first;
  std::vector<SessionId> who;
  std::shared_ptr<const v1::CoordinatorMessage> said;
  while (!next_.empty() && next_.front().first == position) {
    std::pop_heap(next_.begin(), next_.end(), std::greater<>());
    const size_t rank = next_.back().second;
    next_.pop_back();
    said = std::move(missed_[rank][told_[rank]++]);
    who.push_back(by_rank_[rank]);
    Await(rank);
  }
  auto message = std::make_shared<v1::CoordinatorMessage>(*said);
  message->set_epoch(head_.epoch());
  message->set_generation(head_.generation());
  const int64_t cost =
      kEntriesOfMessage + static_cast<int64_t>(who.size()) + message->plan().batches_size();
  effects.outgoing.push_back(Deliver{std::move(who), std::move(message)});
  has_told_ = true;
  return cost;
}

}  // namespace coordd
