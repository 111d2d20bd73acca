// Sends and Receives that are under way, and where they wait. PURE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/base/aligned_buffer.h"
#include "worker/interfaces/transport.h"

namespace coordd {

struct TcpOperation {
  TcpOperation* next = nullptr;  // of the queue that it is in, or of the pool
  uint64_t tag = 0;
  const std::byte* bytes = nullptr;  // of a Send
  std::byte* landing = nullptr;      // of a Receive
  size_t size_bytes = 0;
  Transport::Done done;
  Transport::Taken taken;  // instead, of a ReceiveInPlace
};

// A small message that nobody has received yet.
struct KeptSmall {
  KeptSmall* next = nullptr;
  size_t size_bytes = 0;
  AlignedBuffer bytes;              // at least size_bytes, unless they are with the sender
  bool is_with_sender = false;      // it was asked for, and is to be said to be expected
  bool is_whole = false;            // else its bytes are still coming
  TcpOperation* receive = nullptr;  // which waits for these
};

// That a peer waits for a message which is not sent yet.
struct EarlyReady {
  EarlyReady* next = nullptr;
  size_t size_bytes = 0;
};

// First in, first out; of nodes that others own.
template <typename Node>
class NodeQueue {
 public:
  bool empty() const { return first_ == nullptr; }
  Node* first() const { return first_; }
  void Push(Node& node) {
    node.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &node;
    last_ = &node;
  }
  // nullptr: it is empty.
  Node* Pop() {
    Node* const node = first_;
    if (node != nullptr) first_ = node->next;
    return node;
  }

 private:
  Node* first_ = nullptr;
  Node* last_ = nullptr;
};

// Nodes with addresses that stay; those that are given back are handed out again.
template <typename Node>
class NodePool {
 public:
  Node& New() {
    if (Node* const spare = spare_.Pop(); spare != nullptr) return *spare;
    return nodes_.emplace_back();
  }
  void GiveBack(Node& node) { spare_.Push(node); }

 private:
  std::deque<Node> nodes_;
  NodeQueue<Node> spare_;
};

// What all connections of a transport have together: memory that goes round, and what has ended.
class LinkMemory {
 public:
  struct Ended {
    Transport::Done done;
    Transport::Taken taken;
    absl::Status status;
    const std::byte* bytes = nullptr;  // for `taken`
  };

  TcpOperation& NewOperation() {
    ++pending_;
    return operations_.New();
  }
  // Its `done`, or `taken`, is to be called; the operation is over.
  void End(TcpOperation& operation, absl::Status status);
  int64_t pending() const { return pending_; }
  // Sends that wait for their peer to take others (MessageLink), of all connections.
  void CountHeld(int64_t change) { held_ += change; }
  int64_t held() const { return held_; }
  bool has_ended() const { return !ended_.empty(); }
  // Calls what is to be called, which may begin new operations.

  void CallEnded();

  // With room for a small message.
  KeptSmall& NewKept(size_t size_bytes, bool is_with_sender);
  void GiveBack(KeptSmall& kept);
  NodePool<EarlyReady>& readies() { return readies_; }

 private:
  NodePool<TcpOperation> operations_;
  NodePool<KeptSmall> kept_;
  NodePool<EarlyReady> readies_;
  std::vector<AlignedBuffer> spare_buffers_;
  int64_t spare_bytes_ = 0;
  std::vector<Ended> ended_;
  std::vector<Ended> called_;  // empty between calls, for its memory
  int64_t pending_ = 0, held_ = 0;
};

}  // namespace coordd
