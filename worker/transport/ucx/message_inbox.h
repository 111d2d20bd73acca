// Which message is for which receive, of a transport whose messages arrive whenever they do. PURE.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "common/protocol/types.h"
#include "worker/base/aligned_buffer.h"

namespace coordd {

// What a message says of itself: its tag, whose upper 24 bits are its sender's rank, and how many
// this sender has sent to this rank before it. And of what the sender has received: how many bytes
// from this rank it need not keep any more.
struct MessageLabel {
  static constexpr int kTagBits = 40;

  uint64_t tag = 0;
  uint64_t number = 0;
  uint64_t size_bytes = 0;
  uint64_t taken_bytes = 0;

  Rank sender() const { return Rank{static_cast<int32_t>(tag >> kTagBits)}; }
};

// A message that nobody has received yet.
struct KeptMessage {
  MessageLabel label;
  AlignedBuffer bytes;         // at least label.size_bytes; empty: they are with the sender still,
  void* rendezvous = nullptr;  // and this gets them
};

// A receive that waits; the transport's own follow from it.
struct WaitingReceive {
  uint64_t expected_tag = 0;
  WaitingReceive* next_of_tag = nullptr;  // the inbox's
};

// Messages of one tag match receives of it in the order in which they were sent, also where a
// network lets a small one overtake a large one: each is looked at when all before it have been.
class MessageInbox {
 public:
  // Called once for each message. The receive that waits for it, which then waits no longer;
  // nullptr: there is none yet, or an earlier message is still missing. Then Keep it.
  WaitingReceive* Arrived(const MessageLabel& label);
  void Keep(KeptMessage message);

  // A receive that has got its message, after an earlier one has arrived; to be called until there
  // is none.
  struct Match {
    WaitingReceive* receive;
    KeptMessage message;
  };
  std::optional<Match> NextMatch(Rank sender);

  // The message for a receive of this tag, if it is there; else Wait for it. A receive that waits
  // stays where it is in memory.
  std::optional<KeptMessage> Take(uint64_t tag);
  void Wait(WaitingReceive& receive);
  // Ends the wait of a receive. REQUIRES: it waits.
  void Withdraw(WaitingReceive& receive);

  // Memory for what is kept, some of it used before: pages that are touched for the first time cost
  // more than the copy. Empty: there is none.
  AlignedBuffer NewBuffer(int64_t size_bytes);
  void GiveBack(AlignedBuffer buffer);

  // Ends the waiting of messages, which it hands over. Receives go on waiting.
  std::list<KeptMessage> TakeAll();

 private:
  struct OfTag {
    WaitingReceive* first = nullptr;
    WaitingReceive* last = nullptr;
    std::list<KeptMessage> kept;
  };
  struct OfSender {
    uint64_t looked_at = 0;
    std::map<uint64_t, KeptMessage> early;  // by number
  };
  WaitingReceive* Waiting(uint64_t tag);

  absl::flat_hash_map<uint64_t, OfTag> tags_;  // those with a receive or a message that waits
  absl::flat_hash_map<Rank, OfSender> senders_;
  std::list<AlignedBuffer> spare_;
};

}  // namespace coordd
