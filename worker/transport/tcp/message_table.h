// Which message is for which operation, between this rank and one peer. PURE.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "worker/transport/tcp/tcp_operation.h"

namespace coordd {

// All that waits and has one tag, each kind in its order. Messages of one tag match receives of it
// in the order in which they were sent: the small ones among themselves, and the large ones, since
// the sizes of those that match are equal.
struct TagQueues {
  // Receives of this rank's: for small messages; for large ones, which the peer knows of; and for
  // small ones that the peer was told of, since it had asked.
  NodeQueue<TcpOperation> small, large, asked;
  NodeQueue<KeptSmall> kept;  // messages that nobody has received yet
  // Sends of this rank's: large ones, and small ones of which it has asked.
  NodeQueue<TcpOperation> large_sends, asking_sends;
  NodeQueue<EarlyReady> early;  // what the peer has told of, and this rank not sent yet

  bool empty() const {
    return small.empty() && large.empty() && asked.empty() && kept.empty() && large_sends.empty() &&
           asking_sends.empty() && early.empty();
  }
};

// One thread uses it.
class MessageTable {
 public:
  TagQueues& Of(uint64_t tag) { return tags_[tag]; }
  // Takes the first of a queue; nullptr: it is empty. Queues of tags with nothing in them go.
  template <typename Node>
  Node* Take(uint64_t tag, NodeQueue<Node> TagQueues::*queue) {
    const auto found = tags_.find(tag);
    if (found == tags_.end()) return nullptr;
    Node* const node = (found->second.*queue).Pop();
    if (node != nullptr && found->second.empty()) tags_.erase(found);
    return node;
  }
  // The first of a queue, which stays there.
  template <typename Node>
  const Node* First(uint64_t tag, NodeQueue<Node> TagQueues::*queue) const {
    const auto found = tags_.find(tag);
    return found == tags_.end() ? nullptr : (found->second.*queue).first();
  }
  // Takes all operations, and what goes with their ends; kept messages stay.
  void TakeOperations(absl::FunctionRef<void(TcpOperation&)> operation,
                      absl::FunctionRef<void(EarlyReady&)> early);
  // Takes all messages.
  void TakeKept(absl::FunctionRef<void(KeptSmall&)> kept);

 private:
  absl::flat_hash_map<uint64_t, TagQueues> tags_;
};

}  // namespace coordd
