#include "server/generation/sets_left.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace coordd {
namespace {

class KnownSets final : public Remains {
 public:
  explicit KnownSets(std::shared_ptr<ProcessSets> sets) : sets_(std::move(sets)) {}

  int64_t Free(int64_t most) override {
    const int64_t freed = sets_->FreeNames(most);
    return freed < most ? freed + sets_->FreeSets(most - freed) : freed;
  }

 private:
  const std::shared_ptr<ProcessSets> sets_;
};

}  // namespace

SetsLeft::SetsLeft(std::shared_ptr<ProcessSets> sets, std::vector<ProcessSetId> ended)
    : known_(std::move(sets)), ended_(std::move(ended)), last_(known_->last_left()) {
  std::sort(ended_.begin(), ended_.end());
}

SetsLeft::SetsLeft(std::vector<std::shared_ptr<const v1::ProcessSets>> said) {
  // Most have said the same, which is kept once (SharedWord).
  absl::flat_hash_set<const v1::ProcessSets*> known;
  for (auto& sets : said)
    if (known.insert(sets.get()).second) said_.push_back(std::move(sets));
  if (said_.empty()) return;
  const auto newest =
      std::max_element(said_.begin(), said_.end(),
                       [](const auto& a, const auto& b) { return a->position() < b->position(); });
  std::iter_swap(said_.begin(), newest);
  last_ = ProcessSetId{said_.front()->last_process_set()};
}

std::optional<SetsLeft::Set> SetsLeft::Walk::Next(const SetsLeft& of, int64_t& entries) {
  if (done_) return std::nullopt;
  return of.known_ != nullptr ? NextKnown(of, entries) : NextSaid(of, entries);
}

std::optional<SetsLeft::Set> SetsLeft::Walk::NextKnown(const SetsLeft& of, int64_t& entries) {
  while (next_ < ToInt(of.last_)) {
    if (--entries < 0) return std::nullopt;
    const ProcessSetId id{++next_};
    const MemberList* const members = of.known_->Left(id);
    if (members == nullptr || std::binary_search(of.ended_.begin(), of.ended_.end(), id)) continue;
    return Set{id, members->Ranks()};
  }
  done_ = true;
  return std::nullopt;
}

std::optional<SetsLeft::Set> SetsLeft::Walk::NextSaid(const SetsLeft& of, int64_t& entries) {
  reached_.resize(of.said_.size());
  while (!of.said_.empty() && next_ < of.said_.front()->sets_size()) {
    if (--entries < 0) return std::nullopt;
    const v1::ProcessSet& set = of.said_.front()->sets(next_++);
    if (IsEnded(of, set.process_set(), entries)) continue;
    Set left{ProcessSetId{set.process_set()}, {}};
    left.ranks.reserve(static_cast<size_t>(set.ranks_size()));
    for (int32_t rank : set.ranks()) left.ranks.push_back(Rank{rank});
    return left;
  }
  done_ = true;
  return std::nullopt;
}

// All say them in the order of their numbers.
bool SetsLeft::Walk::IsEnded(const SetsLeft& of, int32_t id, int64_t& entries) {
  bool ended = false;
  for (size_t i = 1; i < of.said_.size(); ++i) {
    const v1::ProcessSets& other = *of.said_[i];
    int& at = reached_[i];
    --entries;
    for (; at < other.sets_size() && other.sets(at).process_set() < id; ++at) --entries;
    const bool knows = at < other.sets_size() && other.sets(at).process_set() == id;
    ended = ended || (!knows && id <= other.last_process_set());
  }
  return ended;
}

std::unique_ptr<Remains> SetsLeft::Bury() {
  if (known_ == nullptr) return nullptr;
  return std::make_unique<KnownSets>(std::exchange(known_, nullptr));
}

}  // namespace coordd
