// The workers that speak through one node session: which there are, and what each of them has said
// (docs/design/control.md, "One session for a node").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/types.h"
#include "coordd/v1/node.pb.h"
#include "server/model/effects.h"

namespace coordd {

// What a message of a stream says, to be told to the state.
struct Heard {
  Inbound in;
  // Of the message, however many say it; 0: none was sent for it.
  size_t bytes = 0;  // on the wire
  size_t space = 0;  // of memory
};

// PURE, not thread-safe. One for each node session. To coordd's state each member is a session of
// its own: what differs is how its words came here.
class NodeMembers {
 public:
  // The members that may be open: as many ranks as one node may have, and twice that while they all
  // come again.
  static constexpr size_t kMaxOpen = 8192;
  // Messages times members of one batch: what a turn of the coordinator may cost.
  static constexpr int64_t kMaxWordsPerBatch = 1 << 16;
  // What its messages take when they are read: a relay's batch has half a mebibyte, of which a byte
  // takes fourteen of memory where tensors have names of a letter.
  static constexpr size_t kMaxSpacePerBatch = size_t{16} << 20;
  // A relay that has had so many begins a new node session: numbers are never used again.
  static constexpr int32_t kMaxMembers = (1 << 24) - 1;

  // `node`: of this node session, unique in coordd's epoch; at least 1.
  explicit NodeMembers(int64_t node) : node_(node) {}

  // What the batch says, to be told to the state. INVALID_ARGUMENT: the relay broke the protocol
  // behind what is in `in`. `refused`: members that may not be here, and why; what they say further
  // is dropped.
  absl::Status Take(const v1::NodeMessages& batch, std::vector<Heard>& in,
                    std::vector<std::pair<int32_t, absl::Status>>& refused);
  // The members whose end had not been said before the last batch: the state may have heard of it,
  // or not.
  std::vector<SessionId> MayBeOpen() const;

  SessionId IdOf(int32_t member) const { return SessionId{kMemberBit | node_ << 24 | member}; }
  // Session ids of other streams are below.
  static bool IsMember(SessionId id) { return (ToInt(id) & kMemberBit) != 0; }
  static int64_t NodeOf(SessionId id) { return (ToInt(id) & ~kMemberBit) >> 24; }
  // The stream that carries it: its own, or its node's.
  static SessionId StreamOf(SessionId id) { return IsMember(id) ? SessionId{NodeOf(id)} : id; }
  static int32_t MemberOf(SessionId id) { return static_cast<int32_t>(ToInt(id) & kMaxMembers); }

  const std::string& job() const { return hello_.job(); }
  const std::string& hostname() const { return hello_.hostname(); }  // for people
  bool said_hello() const { return said_hello_; }
  size_t size() const { return open_.size(); }
  // A number that changes when another member may be here than before.
  int64_t changes() const { return changes_; }

 private:
  static constexpr int64_t kMemberBit = int64_t{1} << 62;

  absl::Status TakeHello(const v1::NodeMessages& batch);
  absl::Status CheckRuns(const v1::NodeMessage& message, int64_t& words) const;
  void End(const v1::NodeMessage& message, std::vector<Heard>& in);
  void Refuse(const v1::NodeMessage& message, const absl::Status& why, int32_t known,
              std::vector<Heard>& in, std::vector<std::pair<int32_t, absl::Status>>& refused);
  absl::Status Add(const v1::NodeMessage& message, const v1::WorkerMessage& said,
                   std::vector<std::pair<int32_t, absl::Status>>& refused);
  std::vector<SessionRange> RangesOf(const v1::NodeMessage& message) const;

  int64_t node_;
  v1::NodeHello hello_;
  bool said_hello_ = false;
  int32_t last_ = 0;              // the highest number that was used
  std::map<int32_t, bool> open_;  // and whether they were refused
  int32_t refused_ = 0;           // of them
  int64_t changes_ = 0;
  std::vector<SessionId> ended_;  // in the last batch
};

}  // namespace coordd
