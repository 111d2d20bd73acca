// The messages between this rank and one other of its node, over a ring in each direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/interfaces/transport.h"
#include "worker/transport/shm/shm_ring.h"

namespace coordd {

// One thread. The protocol, which never lets one lane's message block another's:
//   - A small message is sent at once, as one frame (kEager). The reader takes every frame out of
//     the ring at once and keeps what nobody has asked for yet. So that this stays bounded, the
//     writer has at most kEagerWindowBytes on the way that the reader has not matched.
//   - Any other message is announced (kAnnounce). When the matching Receive is there, the reader
//     answers (kAccept, or kRefuse if the sizes differ), and the message streams through the ring
//     in pieces (kPiece), taking turns with those of other tags.
//   - Eager messages and announcements are written in the order of the Sends, so that messages with
//     one tag match in order.
class ShmChannel {
 public:
  using Done = Transport::Done;
  // Completed operations; the transport calls them when it is through with its channels.
  using Finished = std::vector<std::pair<Done, absl::Status>>;

  // An eager message costs the reader one copy and spares a round trip; from some KiB on the copy
  // costs more.
  static constexpr int64_t kEagerMaxBytes = int64_t{8} << 10;
  // What the reader may have to keep per peer: 64 peers can make it keep 4 MiB.
  static constexpr int64_t kEagerWindowBytes = int64_t{64} << 10;
  // What is counted for each eager message besides its payload: what keeping it costs.
  static constexpr int64_t kEagerOverheadBytes = 64;

  // `outgoing` lies in the peer's segment, `incoming` in this rank's.
  ShmChannel(Rank peer, std::byte* outgoing, std::byte* incoming, int64_t ring_capacity_bytes);

  void Send(uint64_t tag, absl::Span<const std::byte> bytes, Done done);
  void Receive(uint64_t tag, absl::Span<std::byte> bytes, Done done);

  // Reads and writes what can be read and written; returns whether anything moved.
  bool Progress(Finished& finished);

  // The peer is gone: takes what it has left in the ring, then ends everything that cannot complete
  // any more, and what comes later, with `status`.
  void Close(const absl::Status& status, Finished& finished);
  // Ends everything at once.
  void FailAll(const absl::Status& status, Finished& finished);

  bool closed() const { return !closed_.ok(); }
  bool idle() const { return pending_ == 0; }  // no operation waits

 private:
  struct Outgoing {
    uint64_t tag = 0;
    absl::Span<const std::byte> bytes;
    Done done;
    uint32_t stream = 0;
    size_t sent_bytes = 0;
  };
  struct Incoming {  // a posted Receive
    absl::Span<std::byte> bytes;
    Done done;
    size_t received_bytes = 0;
  };
  struct Arrival {  // a message that nobody has asked for yet
    bool announced = false;
    uint32_t stream = 0;
    uint64_t length = 0;
    std::vector<std::byte> payload;  // unless announced
  };
  struct Answer {  // to an announcement
    ShmFrame frame;
    // For a receive that ends with the answer: it does not end before the answer is written,
    // because whoever has nothing in flight any more need not call Progress.
    Done done;
    absl::Status status;
  };
  struct Matching {  // of one tag; at most one of the two is not empty
    std::deque<Incoming> receives;
    std::deque<Arrival> arrivals;
  };

  bool WriteAnswers(Finished& finished);
  bool WriteMessages(Finished& finished);
  bool WritePieces(Finished& finished);
  bool MayBeEager(size_t size) const;

  bool ReadFrames(Finished& finished);
  absl::Status HandleFrame(const ShmFrame& frame, Finished& finished);
  void HandleEager(const ShmFrame& frame, uint64_t tag, Finished& finished);
  void HandleAnnounce(const ShmFrame& frame, uint64_t tag);
  absl::Status HandleAnswer(const ShmFrame& frame, bool accepted, Finished& finished);
  absl::Status HandlePiece(const ShmFrame& frame, Finished& finished);
  void AnswerAnnounce(uint32_t stream, uint64_t length, Incoming receive);
  void FinishEager(Incoming receive, uint64_t length, Finished& finished);
  void Finish(Done done, absl::Status status, Finished& finished);

  // Constant after construction.
  const Rank peer_;
  const int64_t piece_bytes_;

  // Touched by the owner's thread.
  ShmRingWriter writer_;
  ShmRingReader reader_;
  absl::Status closed_;  // OK: the peer is there
  size_t pending_ = 0;   // operations without their `done`
  uint64_t eager_sent_bytes_ = 0;
  uint32_t next_stream_ = 0;
  std::deque<Answer> answers_;                          // to write; bounded by the Receives
  std::deque<Outgoing> messages_;                       // to announce, in order
  absl::flat_hash_map<uint32_t, Outgoing> announced_;   // waiting for an answer, by stream
  std::map<uint64_t, std::deque<Outgoing>> streaming_;  // accepted, by tag: one tag's in order
  uint64_t last_streamed_tag_ = 0;                      // tags take turns
  std::deque<Finished::value_type> late_;               // ended by Send or Receive themselves
  absl::flat_hash_map<uint64_t, Matching> matching_;    // by tag
  absl::flat_hash_map<uint32_t, Incoming> streams_in_;  // accepted, by the peer's stream
};

}  // namespace coordd
