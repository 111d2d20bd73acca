#include "worker/transport/tcp/message_table.h"

namespace coordd {

void MessageTable::TakeOperations(absl::FunctionRef<void(TcpOperation&)> operation,
                                  absl::FunctionRef<void(EarlyReady&)> early) {
  for (auto& [tag, queues] : tags_) {
    for (NodeQueue<TcpOperation>* queue :
         {&queues.small, &queues.large, &queues.asked, &queues.large_sends, &queues.asking_sends}) {
      while (TcpOperation* const taken = queue->Pop()) operation(*taken);
    }
    while (EarlyReady* const taken = queues.early.Pop()) early(*taken);
  }
  absl::erase_if(tags_, [](const auto& entry) { return entry.second.empty(); });
}

void MessageTable::TakeKept(absl::FunctionRef<void(KeptSmall&)> kept) {
  for (auto& [tag, queues] : tags_) {
    while (KeptSmall* const taken = queues.kept.Pop()) kept(*taken);
  }
  absl::erase_if(tags_, [](const auto& entry) { return entry.second.empty(); });
}

}  // namespace coordd
