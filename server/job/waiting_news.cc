#include "server/job/waiting_news.h"

#include <utility>
#include <vector>

namespace coordd {

void WaitingNews::Tell(const Situation& is, const JobWorkers& workers, const JobMessages& messages,
                       const Turn& turn) {
  if (!IsDue(turn.now)) return;
  Forget();
  std::vector<SessionId> waiting = workers.Waiting();
  std::vector<SessionId> members = workers.Members();
  const auto count = static_cast<int32_t>(waiting.size());
  if (!is.members_may_act || told_members_ == count) members.clear();
  if (waiting.empty() && members.empty()) return;
  Told(turn.now);
  if (!waiting.empty()) messages.Waiting(std::move(waiting), is.reason, turn.effects);
  if (members.empty()) return;
  TellMembers(count);
  messages.Newcomers(std::move(members), turn.effects);
}

}  // namespace coordd
