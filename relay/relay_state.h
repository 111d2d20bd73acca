// What a relay of a node puts together and takes apart (docs/design/control.md, "One session for a
// node").
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/node.pb.h"

namespace coordd {

// A worker's stream to the relay.
using StreamId = StrongInt<struct StreamTag, int64_t>;

struct RelayOptions {
  // How long what one worker has said waits for what the others say. In a round all ranks of a node
  // report within some tens of microseconds, if there are cores for them.
  absl::Duration hold = absl::Microseconds(100);
  // The size of one batch: half of what coordd takes at most, as messages and as words of members.
  size_t batch_bytes = 512 << 10;
  int64_t batch_words = 1 << 15;
  // Where the relay serves the metrics of its node, as Join.metrics_address; empty: each worker
  // serves its own.
  std::string metrics_address = {};
  // Beyond so many bytes nothing more is read from workers until some has gone to coordd.
  size_t pending_bytes = 8 << 20;
};

// PURE; `now` must not decrease. Not thread-safe. One for each node session: it ends with it, and
// so do the streams of all workers.
class RelayState {
 public:
  // What goes to one worker, in order.
  struct ToWorker {
    StreamId stream;
    const std::string* message = nullptr;  // nullptr: its stream ends, with `status`
    int64_t sequence = 0;                  // of the message
    absl::Status status = {};
  };

  // The job is that of the first Join.
  RelayState(const RelayOptions& options, v1::NodeHello hello);

  // Takes what a worker has sent. Its first word is a Join, and makes it a member.
  void Said(StreamId stream, std::string message, absl::Time now);
  // A worker's stream has ended. coordd is told if it has heard of the worker and has not ended the
  // stream itself.
  void Ended(StreamId stream, absl::string_view detail, absl::Time now);

  // When a batch should go: at once if all members have something to say. InfiniteFuture: there is
  // nothing.
  absl::Time BatchDue() const;
  // Equal words of several members once; what each has said in its order. REQUIRES: there is
  // something.
  v1::NodeMessages TakeBatch();
  bool full() const { return pending_bytes_ > options_.pending_bytes; }

  // What coordd has sent; `replies` outlives what is returned. INTERNAL: coordd broke the protocol.
  absl::Status Heard(const v1::NodeReplies& replies, absl::Time now, std::vector<ToWorker>& out);

  size_t members() const { return members_.size(); }
  // Where its members themselves serve their metrics, if the relay serves them for all.
  std::vector<std::string> MetricsAddresses() const;

 private:
  struct Member {
    StreamId stream;
    int64_t sequence = 0;    // of the last message to it
    int64_t last_word = -1;  // among all entries that were ever pending; -1: none
    std::string metrics_address = {};
  };
  struct Entry {
    std::vector<int32_t> members;
    std::string message;
    bool is_end = false;  // `message` is then its detail
  };

  // Of a member that comes: whose job it is, and where its metrics are.
  void ReadJoin(Member& member, std::string& message);
  void Add(int32_t member, std::string message, bool is_end, bool alone, absl::Time now);
  int64_t next_entry() const { return first_entry_ + static_cast<int64_t>(pending_.size()); }

  RelayOptions options_;
  v1::NodeHello hello_;
  bool hello_sent_ = false;
  int32_t last_member_ = 0;
  std::map<int32_t, Member> members_;
  absl::flat_hash_map<StreamId, int32_t> member_of_;
  std::deque<Entry> pending_;
  int64_t first_entry_ = 0;  // number of pending_.front()
  // The last entry with each word, by a view of it; entries of a deque stay where they are.
  absl::flat_hash_map<absl::string_view, int64_t> by_message_;
  size_t pending_bytes_ = 0;
  size_t with_words_ = 0;  // members that have something pending
  absl::Time pending_since_ = absl::InfiniteFuture();
};

}  // namespace coordd
