#include "worker/transport/tcp/tcp_traffic.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/transport/tcp/tls_keys.h"

namespace coordd {
namespace {

// The connections of so many peers are read without asking first which of them have something.
constexpr size_t kReadUnasked = 4;
// Of one connection in one turn: others, and Abort, want theirs.
constexpr int kReadsPerTurn = 16, kWritesPerTurn = 16;
constexpr size_t kScratchBytes = MessageLink::kAsideBytesMax + FrameHeader::kBytes;
constexpr size_t kPartsPerWrite = 64;
// Of records that are encrypted at a time, and sent by one call: it stays in the core's caches.
constexpr size_t kSealingBytes = (size_t{128} << 10) + RecordWriter::kPayloadBytesMin;
static_assert(kSealingBytes >= RecordWriter::kRoomBytesMin);

}  // namespace

void TcpTraffic::Open(int32_t connections, bool encrypts, uint64_t first_key, OnEnd on_end) {
  on_end_ = std::move(on_end);
  first_key_ = first_key;
  few_ = kReadUnasked * static_cast<size_t>(connections);
  scratch_ = AlignedBuffer(kScratchBytes);
  COORDD_CHECK(scratch_.data() != nullptr);
  if (encrypts) sealing_.resize(kSealingBytes);
}

uint64_t TcpTraffic::KeyOf(const TcpConnection& connection) const {
  return first_key_ + static_cast<uint64_t>(ToInt(connection.peer.rank)) * kTcpConnectionsMax +
         static_cast<uint64_t>(connection.number);
}

std::pair<size_t, int32_t> TcpTraffic::ConnectionOf(uint64_t key_beyond_first) {
  return {static_cast<size_t>(key_beyond_first / kTcpConnectionsMax),
          static_cast<int32_t>(key_beyond_first % kTcpConnectionsMax)};
}

void TcpTraffic::Add(TcpConnection& connection) {
  connection.events = EPOLLIN;
  polls_.Change(connection.stream->socket(), KeyOf(connection), connection.events);
  connected_.push_back(&connection);
  if (connection.stream->has_buffered()) to_read_.push_back(&connection);
  WantsFlush(connection);
}

void TcpTraffic::Remove(TcpConnection& connection) {
  if (connection.stream == nullptr) return;
  if ((connection.events & EPOLLOUT) != 0) --blocked_;
  connection.stream.reset();
  std::erase(connected_, &connection);
}

void TcpTraffic::EndSending(TcpConnection& connection) {
  if (connection.stream == nullptr || connection.only_reads) return;
  KeepEvents(connection, /*is_blocked=*/false);
  connection.only_reads = true;
  connection.stream->EndSending();
}

void TcpTraffic::WantsFlush(TcpConnection& connection) {
  if (connection.is_to_flush || connection.stream == nullptr || connection.only_reads ||
      connection.link.outbox().empty()) {
    return;
  }
  connection.is_to_flush = true;
  to_flush_.push_back(&connection);
}

bool TcpTraffic::IsLeft(const TcpConnection& connection) const {
  return leaves_unexpected_ && connection.link.pending() == 0 && !connection.only_reads;
}

// Of peers with several connections, others than the first are read where something is expected.
bool TcpTraffic::ReadUnasked() {
  bool moved = false;
  for (TcpConnection* const connection : std::exchange(to_read_, {})) moved |= Read(*connection);
  const bool few = is_few();
  // Whoever is lost leaves connected_, and another one takes its place: that has its turn later.
  for (size_t i = 0; few && i < connected_.size(); ++i) {
    TcpConnection& connection = *connected_[i];
    const bool is_read = connection.number == 0 || connection.link.pending() > 0;
    if ((is_read && !IsLeft(connection)) || connection.only_reads) moved |= Read(connection);
  }
  return moved;
}

bool TcpTraffic::OnReady(TcpConnection& connection, uint32_t events) {
  if ((events & EPOLLOUT) != 0 && connection.stream != nullptr) {
    KeepEvents(connection, /*is_blocked=*/false);
    if (!std::exchange(connection.is_to_flush, true)) to_flush_.push_back(&connection);
  }
  return (events & ~EPOLLOUT) != 0u && !IsLeft(connection) && Read(connection);
}

// Where what comes may be much, no more than a header is read that has no place yet.
absl::Span<std::byte> TcpTraffic::RoomBeside(TcpConnection& connection) {
  const FrameReader& reader = connection.link.reader();
  const bool sparing = !reader.target().empty() || connection.link.expects_much();
  return scratch_.span().first(sparing ? reader.header_left() : kScratchBytes);
}

bool TcpTraffic::Read(TcpConnection& connection) {
  bool moved_any = false;
  for (int i = 0; connection.stream != nullptr; ++i) {
    if (i >= kReadsPerTurn || (i > 0 && IsLeft(connection))) {
      // Of what is not at the socket any more epoll does not tell.
      if (connection.stream->has_buffered()) to_read_.push_back(&connection);
      break;
    }
    FrameReader& reader = connection.link.reader();
    TcpStream::Got got = connection.stream->Read(reader.target(), RoomBeside(connection));
    if (got.is_over) {
      on_end_(connection, got.is_wrong ? End::kWrong : End::kEnded, std::move(got.why));
      return true;
    }
    if (got.has_moved) moved_any = connection.peer.has_moved = true;
    if (got.placed > 0) reader.Filled(got.placed);
    const absl::Status taken = reader.Take(got.others);
    if (!taken.ok()) {
      on_end_(connection, End::kWrong, absl::StrCat("it has sent ", taken.message()));
      return true;
    }
    WantsFlush(connection);
    if (got.was_all) break;
  }
  return moved_any;
}

// What its peer has said before that is still to be received.
void TcpTraffic::ReadToItsEnd(TcpConnection& connection) {
  const bool left = std::exchange(leaves_unexpected_, false);
  while (Read(connection)) continue;
  leaves_unexpected_ = left;
}

bool TcpTraffic::FlushAll() {
  bool moved = false;
  flushing_.swap(to_flush_);
  for (TcpConnection* const connection : flushing_) {
    connection->is_to_flush = false;
    if (connection->stream == nullptr || connection->only_reads) continue;
    if ((connection->events & EPOLLOUT) == 0) moved |= Flush(*connection);
  }
  flushing_.clear();
  return moved;
}

bool TcpTraffic::Flush(TcpConnection& connection) {
  bool moved_any = false;
  for (int i = 0; i < kWritesPerTurn; ++i) {
    std::array<iovec, kPartsPerWrite> parts;
    const size_t count = connection.link.outbox().Gather(absl::MakeSpan(parts));
    TcpStream::Moved moved;
    if (count > 0) {
      moved = connection.stream->Write({parts.data(), count}, absl::MakeSpan(sealing_));
    } else if (connection.stream->has_unsent()) {
      moved = connection.stream->Flush();
    } else {
      return moved_any;
    }
    if (moved.is_over) {
      ReadToItsEnd(connection);
      if (connection.stream != nullptr) on_end_(connection, End::kEnded, std::move(moved.why));
      return true;
    }
    connection.link.Wrote(moved.bytes, /*has_left=*/!connection.stream->has_unsent());
    moved_any |= moved.bytes > 0;
    size_t size = 0;
    for (size_t part = 0; part < count; ++part) size += parts[part].iov_len;
    const bool is_full =
        connection.stream->encrypts() ? connection.stream->has_unsent() : moved.bytes < size;
    if (is_full) {
      KeepEvents(connection, /*is_blocked=*/true);
      return moved_any;
    }
  }
  WantsFlush(connection);
  return moved_any;
}

void TcpTraffic::KeepEvents(TcpConnection& connection, bool is_blocked) {
  const uint32_t events = EPOLLIN | (is_blocked ? EPOLLOUT : 0u);
  if (events == connection.events) return;
  blocked_ += is_blocked ? 1 : -1;
  connection.events = events;
  polls_.Change(connection.stream->socket(), KeyOf(connection), events);
}

bool TcpTraffic::has_unsent() const {
  return std::any_of(connected_.begin(), connected_.end(), [](TcpConnection* connection) {
    return !connection->only_reads &&
           (!connection->link.outbox().empty() || connection->stream->has_unsent());
  });
}

}  // namespace coordd
