#include "worker/transport/shm/shm_channel.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/base/copy_bytes.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

enum class FrameKind : uint8_t { kEager = 1, kAnnounce, kAccept, kRefuse, kPiece };

constexpr int kKindShift = 56;

// Frames that one Progress takes at most: other channels want their turn.
constexpr int kFramesPerTurn = 64;

// A piece goes out when it fits, so it must be small beside the ring for reader and writer to
// overlap; beyond 64 KiB its header no longer matters.
constexpr int64_t kPieceMaxBytes = int64_t{64} << 10;

uint64_t KindAndTag(FrameKind kind, uint64_t tag) {
  return (static_cast<uint64_t>(kind) << kKindShift) | tag;
}

absl::Status SizeMismatch(Rank peer, uint64_t sent, uint64_t expected) {
  return absl::InternalError(absl::StrCat("message between this rank and rank ", ToInt(peer), ": ",
                                          sent, " bytes were sent, ", expected, " expected"));
}

}  // namespace

ShmChannel::ShmChannel(Rank peer, std::byte* outgoing, std::byte* incoming,
                       int64_t ring_capacity_bytes)
    : peer_(peer),
      piece_bytes_(std::min(kPieceMaxBytes, ring_capacity_bytes / 8)),
      writer_(outgoing, ring_capacity_bytes),
      reader_(incoming, ring_capacity_bytes) {}

void ShmChannel::Send(uint64_t tag, absl::Span<const std::byte> bytes, Done done) {
  ++pending_;
  if (closed()) {
    late_.emplace_back(std::move(done), closed_);
    return;
  }
  messages_.push_back({tag, bytes, std::move(done), 0, 0});
}

void ShmChannel::Receive(uint64_t tag, absl::Span<std::byte> bytes, Done done) {
  ++pending_;
  Matching& matching = matching_[tag];
  Incoming receive{bytes, std::move(done), 0};
  if (matching.arrivals.empty()) {
    if (closed()) {
      late_.emplace_back(std::move(receive.done), closed_);
    } else {
      matching.receives.push_back(std::move(receive));
    }
    return;
  }
  Arrival arrival = std::move(matching.arrivals.front());
  matching.arrivals.pop_front();
  if (matching.arrivals.empty()) matching_.erase(tag);
  Finished finished;
  if (arrival.announced) {
    AnswerAnnounce(arrival.stream, arrival.length, std::move(receive));
  } else {
    if (arrival.payload.size() == receive.bytes.size())
      CopyBytes(receive.bytes.data(), arrival.payload.data(), SizeOf(arrival.payload));
    FinishEager(std::move(receive), arrival.payload.size(), finished);
  }
  // Its `done` is called by the next Progress.
  for (auto& entry : finished) {
    ++pending_;
    late_.push_back(std::move(entry));
  }
}

bool ShmChannel::Progress(Finished& finished) {
  bool moved = !late_.empty();
  for (auto& [done, status] : late_) Finish(std::move(done), std::move(status), finished);
  late_.clear();
  if (closed()) return moved;
  moved |= ReadFrames(finished);
  if (closed()) return true;
  moved |= WriteAnswers(finished);
  moved |= WriteMessages(finished);
  moved |= WritePieces(finished);
  return moved;
}

void ShmChannel::Close(const absl::Status& status, Finished& finished) {
  if (closed()) return;
  while (!closed() && ReadFrames(finished)) {
  }
  if (closed()) return;  // by a frame that was none
  FailAll(status, finished);
  // What has arrived as a whole can still be received.
  for (auto& [tag, matching] : matching_) {
    std::erase_if(matching.arrivals, [](const Arrival& arrival) { return arrival.announced; });
  }
}

void ShmChannel::FailAll(const absl::Status& status, Finished& finished) {
  closed_ = status;
  for (auto& [done, late_status] : late_) Finish(std::move(done), std::move(late_status), finished);
  late_.clear();
  for (Answer& answer : answers_) {
    if (answer.done) Finish(std::move(answer.done), std::move(answer.status), finished);
  }
  answers_.clear();
  for (Outgoing& message : messages_) Finish(std::move(message.done), status, finished);
  messages_.clear();
  for (auto& [stream, message] : announced_) Finish(std::move(message.done), status, finished);
  announced_.clear();
  for (auto& [tag, messages] : streaming_) {
    for (Outgoing& message : messages) Finish(std::move(message.done), status, finished);
  }
  streaming_.clear();
  for (auto& [tag, matching] : matching_) {
    for (Incoming& receive : matching.receives) Finish(std::move(receive.done), status, finished);
    matching.receives.clear();
  }
  for (auto& [stream, receive] : streams_in_) Finish(std::move(receive.done), status, finished);
  streams_in_.clear();
}

bool ShmChannel::WriteAnswers(Finished& finished) {
  bool moved = false;
  while (!answers_.empty() && writer_.HasRoom(0)) {
    Answer& answer = answers_.front();
    writer_.Write(answer.frame, {});
    if (answer.done) Finish(std::move(answer.done), std::move(answer.status), finished);
    answers_.pop_front();
    moved = true;
  }
  return moved;
}

bool ShmChannel::MayBeEager(size_t size) const {
  if (static_cast<int64_t>(size) > std::min(kEagerMaxBytes, piece_bytes_)) return false;
  const uint64_t on_the_way = eager_sent_bytes_ - writer_.matched_bytes();
  return on_the_way + size + kEagerOverheadBytes <= static_cast<uint64_t>(kEagerWindowBytes);
}

bool ShmChannel::WriteMessages(Finished& finished) {
  bool moved = false;
  while (!messages_.empty()) {
    Outgoing& message = messages_.front();
    const bool eager = MayBeEager(message.bytes.size());
    if (!writer_.HasRoom(eager ? static_cast<int64_t>(message.bytes.size()) : 0)) break;
    if (eager) {
      eager_sent_bytes_ += message.bytes.size() + kEagerOverheadBytes;
      writer_.Write({KindAndTag(FrameKind::kEager, message.tag), message.bytes.size(), 0, 0},
                    message.bytes);
      Finish(std::move(message.done), absl::OkStatus(), finished);
    } else {
      message.stream = next_stream_++;
      writer_.Write(
          {KindAndTag(FrameKind::kAnnounce, message.tag), message.bytes.size(), message.stream, 0},
          {});
      announced_.emplace(message.stream, std::move(message));
    }
    messages_.pop_front();
    moved = true;
  }
  return moved;
}

bool ShmChannel::WritePieces(Finished& finished) {
  bool moved = false;
  while (!streaming_.empty()) {
    // The tag after the last one, around the circle.
    auto turn = streaming_.upper_bound(last_streamed_tag_);
    if (turn == streaming_.end()) turn = streaming_.begin();
    Outgoing& message = turn->second.front();
    const size_t size =
        std::min(static_cast<size_t>(piece_bytes_), message.bytes.size() - message.sent_bytes);
    if (!writer_.HasRoom(static_cast<int64_t>(size))) break;
    writer_.Write({KindAndTag(FrameKind::kPiece, message.tag), 0, message.stream, 0},
                  message.bytes.subspan(message.sent_bytes, size));
    message.sent_bytes += size;
    last_streamed_tag_ = message.tag;
    if (message.sent_bytes == message.bytes.size()) {
      Finish(std::move(message.done), absl::OkStatus(), finished);
      turn->second.pop_front();
      if (turn->second.empty()) streaming_.erase(turn);
    }
    moved = true;
  }
  return moved;
}

bool ShmChannel::ReadFrames(Finished& finished) {
  bool moved = false;
  for (int i = 0; i < kFramesPerTurn; ++i) {
    const absl::StatusOr<std::optional<ShmFrame>> frame = reader_.Peek();
    absl::Status status = frame.status();
    if (status.ok() && !frame->has_value()) break;
    if (status.ok()) status = HandleFrame(**frame, finished);
    if (!status.ok()) {
      FailAll(PeerLost(peer_, status.message()), finished);
      return true;
    }
    reader_.Pop();
    moved = true;
  }
  return moved;
}

absl::Status ShmChannel::HandleFrame(const ShmFrame& frame, Finished& finished) {
  const uint64_t tag = frame.kind_and_tag & ((uint64_t{1} << kKindShift) - 1);
  const FrameKind kind = static_cast<FrameKind>(frame.kind_and_tag >> kKindShift);
  switch (kind) {
    case FrameKind::kEager:
      HandleEager(frame, tag, finished);
      return absl::OkStatus();
    case FrameKind::kAnnounce:
      HandleAnnounce(frame, tag);
      return absl::OkStatus();
    case FrameKind::kAccept:
    case FrameKind::kRefuse:
      return HandleAnswer(frame, kind == FrameKind::kAccept, finished);
    case FrameKind::kPiece:
      return HandlePiece(frame, finished);
  }
  return absl::InternalError(
      absl::StrCat("a frame of unknown kind ", frame.kind_and_tag >> kKindShift));
}

void ShmChannel::HandleEager(const ShmFrame& frame, uint64_t tag, Finished& finished) {
  Matching& matching = matching_[tag];
  if (matching.receives.empty()) {
    Arrival arrival;
    arrival.payload.resize(frame.payload_bytes);
    reader_.CopyPayload(absl::MakeSpan(arrival.payload));
    matching.arrivals.push_back(std::move(arrival));
    return;
  }
  Incoming receive = std::move(matching.receives.front());
  matching.receives.pop_front();
  if (matching.receives.empty()) matching_.erase(tag);
  if (receive.bytes.size() == frame.payload_bytes) reader_.CopyPayload(receive.bytes);
  FinishEager(std::move(receive), frame.payload_bytes, finished);
}

void ShmChannel::HandleAnnounce(const ShmFrame& frame, uint64_t tag) {
  Matching& matching = matching_[tag];
  if (matching.receives.empty()) {
    matching.arrivals.push_back({true, frame.stream, frame.length, {}});
    return;
  }
  Incoming receive = std::move(matching.receives.front());
  matching.receives.pop_front();
  if (matching.receives.empty()) matching_.erase(tag);
  AnswerAnnounce(frame.stream, frame.length, std::move(receive));
}

absl::Status ShmChannel::HandleAnswer(const ShmFrame& frame, bool accepted, Finished& finished) {
  auto message = announced_.find(frame.stream);
  if (message == announced_.end()) {
    return absl::InternalError(
        absl::StrCat("an answer to message ", frame.stream, ", which was not announced"));
  }
  Outgoing outgoing = std::move(message->second);
  announced_.erase(message);
  if (!accepted) {
    Finish(std::move(outgoing.done), SizeMismatch(peer_, outgoing.bytes.size(), frame.length),
           finished);
  } else if (outgoing.bytes.empty()) {
    Finish(std::move(outgoing.done), absl::OkStatus(), finished);
  } else {
    streaming_[outgoing.tag].push_back(std::move(outgoing));
  }
  return absl::OkStatus();
}

absl::Status ShmChannel::HandlePiece(const ShmFrame& frame, Finished& finished) {
  auto stream = streams_in_.find(frame.stream);
  if (stream == streams_in_.end() ||
      frame.payload_bytes > stream->second.bytes.size() - stream->second.received_bytes) {
    return absl::InternalError(
        absl::StrCat("a piece of message ", frame.stream, ", which was not accepted"));
  }
  Incoming& receive = stream->second;
  reader_.CopyPayload(receive.bytes.subspan(receive.received_bytes, frame.payload_bytes));
  receive.received_bytes += frame.payload_bytes;
  if (receive.received_bytes == receive.bytes.size()) {
    Done done = std::move(receive.done);
    streams_in_.erase(stream);
    Finish(std::move(done), absl::OkStatus(), finished);
  }
  return absl::OkStatus();
}

void ShmChannel::AnswerAnnounce(uint32_t stream, uint64_t length, Incoming receive) {
  const bool fits = length == receive.bytes.size();
  Answer answer;
  answer.frame = {KindAndTag(fits ? FrameKind::kAccept : FrameKind::kRefuse, 0),
                  receive.bytes.size(), stream, 0};
  if (!fits) answer.status = SizeMismatch(peer_, length, receive.bytes.size());
  if (fits && length > 0) {
    streams_in_.emplace(stream, std::move(receive));
  } else {
    answer.done = std::move(receive.done);
  }
  answers_.push_back(std::move(answer));
}

void ShmChannel::FinishEager(Incoming receive, uint64_t length, Finished& finished) {
  reader_.AddMatchedBytes(length + kEagerOverheadBytes);
  Finish(std::move(receive.done),
         length == receive.bytes.size() ? absl::OkStatus()
                                        : SizeMismatch(peer_, length, receive.bytes.size()),
         finished);
}

void ShmChannel::Finish(Done done, absl::Status status, Finished& finished) {
  --pending_;
  finished.emplace_back(std::move(done), std::move(status));
}

}  // namespace coordd
