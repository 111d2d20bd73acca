#include "server/job/found_sets.h"

#include "common/protocol/process_set_parts.h"
#include "common/protocol/protocol_bounds.h"
#include "coordd/v1/records.pb.h"

namespace coordd {
namespace {

// Of a part, which is freed whole, so many sets are a piece.
constexpr int64_t kSetsOfPiece = 8;

}  // namespace

class FoundSets::Dropped final : public Remains {
 public:
  explicit Dropped(std::shared_ptr<const FoundSets> sets) : parts_(sets->parts_) {}

  int64_t Free(int64_t most) override {
    int64_t freed = 0;
    for (; freed < most && !parts_.empty(); parts_.pop_back())
      freed += 1 + parts_.back()->process_sets().sets_size() / kSetsOfPiece;
    return freed;
  }

 private:
  std::vector<Part> parts_;
};

FoundSets::FoundSets(const v1::CoordinatorMessage& head, const v1::ProcessSets& sets) {
  if (sets.last_process_set() == 0) return;
  for (v1::ProcessSets& part : InParts(sets, kProcessSetsBytes)) {
    auto message = std::make_shared<v1::CoordinatorMessage>(head);
    *message->mutable_process_sets() = std::move(part);
    parts_.push_back(std::move(message));
  }
}

void FoundSets::Tell(const std::vector<SessionId>& to, Effects& effects) const {
  if (to.empty()) return;
  for (const Part& part : parts_) effects.outgoing.push_back(Deliver{to, part});
}

std::vector<const v1::ProcessSets*> FoundSets::parts() const {
  std::vector<const v1::ProcessSets*> sets;
  sets.reserve(parts_.size());
  for (const Part& part : parts_) sets.push_back(&part->process_sets());
  return sets;
}

std::unique_ptr<Remains> FoundSets::Bury(std::shared_ptr<const FoundSets> sets) {
  if (sets == nullptr || sets->empty()) return nullptr;
  return std::make_unique<Dropped>(std::move(sets));
}

FoundSetsMaker::FoundSetsMaker(v1::CoordinatorMessage head, ProcessSetId last)
    : head_(std::move(head)), last_(last) {
  if (ToInt(last_) > 0) open_ = std::make_shared<v1::CoordinatorMessage>(head_);
}

void FoundSetsMaker::Add(ProcessSetId id, const std::vector<Rank>& ranks) {
  v1::ProcessSet set;
  set.set_process_set(ToInt(id));
  set.mutable_ranks()->Reserve(static_cast<int>(ranks.size()));
  for (Rank rank : ranks) set.add_ranks(ToInt(rank));
  const int64_t bytes = PartBytes(set);
  if (open_bytes_ > 0 && open_bytes_ + bytes > kProcessSetsBytes) Close(/*more=*/true);
  open_bytes_ += bytes;
  *open_->mutable_process_sets()->add_sets() = std::move(set);
}

void FoundSetsMaker::Close(bool more) {
  v1::ProcessSets& sets = *open_->mutable_process_sets();
  sets.set_last_process_set(ToInt(last_));
  v1::JobRecord part;
  part.mutable_process_sets()->Swap(&sets);
  part.AppendToString(&stored_);
  part.mutable_process_sets()->Swap(&sets);
  sets.set_more(more);
  parts_.push_back(std::move(open_));
  open_ = more ? std::make_shared<v1::CoordinatorMessage>(head_) : nullptr;
  open_bytes_ = 0;
}

FoundSets FoundSetsMaker::Finish() {
  if (open_ != nullptr) Close(/*more=*/false);
  return FoundSets(std::move(parts_));
}

}  // namespace coordd
