#include "server/job/said_sets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/process_set_parts.h"
#include "server/model/digest.h"

namespace coordd {
namespace {

class DeadSets final : public Remains {
 public:
  explicit DeadSets(std::vector<std::unique_ptr<v1::ProcessSets>> dead) : dead_(std::move(dead)) {}

  int64_t Free(int64_t most) override {
    int64_t freed = 0;
    for (; freed < most && !dead_.empty(); ++freed) {
      auto* const sets = dead_.back() == nullptr ? nullptr : dead_.back()->mutable_sets();
      if (sets == nullptr || sets->empty()) {
        dead_.pop_back();
      } else {
        const std::unique_ptr<v1::ProcessSet> last(sets->ReleaseLast());
      }
    }
    return freed;
  }

 private:
  std::vector<std::unique_ptr<v1::ProcessSets>> dead_;
};

}  // namespace

absl::Status SaidSets::Add(const v1::ProcessSets& part, int32_t size) {
  if (sets_ == nullptr) sets_ = std::make_unique<v1::ProcessSets>();
  const int32_t checked = sets_->sets_size();
  COORDD_RETURN_IF_ERROR(AddPart(part, *sets_));
  COORDD_RETURN_IF_ERROR(CheckProcessSets(*sets_, size, checked));
  digest_ = Sha256(absl::StrCat(digest_, part.SerializeAsString()));
  space_ += static_cast<int64_t>(part.SpaceUsedLong());
  return absl::OkStatus();
}

KeptSets::Kept KeptSets::Keep(SaidSets said) {
  if (said.empty()) return {};
  for (const Known& known : known_) {
    std::shared_ptr<const v1::ProcessSets> sets = known.sets.lock();
    if (sets == nullptr || known.digest != said.digest_) continue;
    const int64_t space = said.space_;
    Forget(std::move(said));
    return {std::move(sets), space};
  }
  // The last who has it does not free it, but leaves it to TakeDead. What outlives this is freed
  // as everything else is.
  const std::weak_ptr<Dead> dead = dead_;
  v1::ProcessSets* const own = said.sets_.release();
  std::shared_ptr<const v1::ProcessSets> kept(own, [dead, own](const v1::ProcessSets*) {
    std::unique_ptr<v1::ProcessSets> sets(own);
    if (const std::shared_ptr<Dead> there = dead.lock()) there->push_back(std::move(sets));
  });
  known_[next_++ % kKnown] = {std::move(said.digest_), kept};
  return {std::move(kept), said.space_};
}

std::unique_ptr<Remains> KeptSets::TakeDead() {
  if (dead_->empty()) return nullptr;
  return std::make_unique<DeadSets>(std::exchange(*dead_, {}));
}

}  // namespace coordd
