#include "server/job/dismissals.h"

#include <algorithm>

namespace coordd {

std::optional<Dismissals::Pending> Dismissals::Take(CallId call) {
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [call](const Pending& one) { return one.answer.call == call; });
  if (found == pending_.end()) return std::nullopt;
  Pending taken = std::move(*found);
  pending_.erase(found);
  return taken;
}

void Dismissals::Fail(const absl::Status& why, Effects& effects) {
  for (Pending& pending : std::exchange(pending_, {})) {
    pending.answer.reply.Clear();
    pending.answer.status = why;
    effects.outgoing.push_back(std::move(pending.answer));
  }
}

bool Dismissals::Store(bool is_empty) {
  if (is_empty && !is_stored_) return false;
  is_stored_ = !is_empty;
  return true;
}

}  // namespace coordd
