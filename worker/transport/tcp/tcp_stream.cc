#include "worker/transport/tcp/tcp_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/transport/tcp/tcp_frame.h"

namespace coordd {
namespace {

bool IsToBeTriedAgain(int error) { return error == EAGAIN || error == EINTR; }

std::string EndBy(int error) { return absl::StrCat("its connection ended: ", strerror(error)); }

}  // namespace

TcpStream::TcpStream(OwnedFd socket) : socket_(std::move(socket)) {}

TcpStream::TcpStream(OwnedFd socket, const RecordSecret& sends, const RecordSecret& receives)
    : socket_(std::move(socket)) {
  writer_.emplace(sends);
  reader_.emplace(receives);
}

TcpStream::Got TcpStream::Read(absl::Span<std::byte> target, absl::Span<std::byte> room) {
  if (encrypts()) return ReadRecords(target, room.size() <= FrameHeader::kBytes);
  return ReadPlain(target, room);
}

std::optional<TcpStream::Got> TcpStream::EndOf(ssize_t got) const {
  if (got > 0 || (got < 0 && IsToBeTriedAgain(errno))) return std::nullopt;
  Got end;
  end.is_over = true;
  const bool is_cut_off = reader_.has_value() && reader_->is_in_record();
  end.why = got < 0      ? EndBy(errno)
            : is_cut_off ? "its connection ended in the middle of a record"
                         : "its connection ended";
  return end;
}

TcpStream::Got TcpStream::ReadPlain(absl::Span<std::byte> target, absl::Span<std::byte> room) {
  std::array<iovec, 2> parts;
  int count = 0;
  if (!target.empty()) parts[static_cast<size_t>(count++)] = {target.data(), target.size()};
  parts[static_cast<size_t>(count++)] = {room.data(), room.size()};
  const ssize_t result = readv(socket_.get(), parts.data(), count);
  if (std::optional<Got> end = EndOf(result)) return *std::move(end);
  Got got;
  got.was_all = true;
  if (result < 0) return got;
  const auto bytes = static_cast<size_t>(result);
  got.has_moved = true;
  got.was_all = bytes < target.size() + room.size();
  got.placed = std::min(bytes, target.size());
  got.others = room.first(bytes - got.placed);
  return got;
}

TcpStream::Got TcpStream::ReadRecords(absl::Span<std::byte> target, bool sparing) {
  Got got;
  for (;;) {
    absl::StatusOr<RecordReader::Opened> opened = reader_->Open(target);
    if (!opened.ok()) {
      got.is_over = got.is_wrong = true;
      got.why = std::string(opened.status().message());
      return got;
    }
    got.placed = opened->placed;
    got.others = opened->frames;
    got.was_all = was_emptied_ && !reader_->can_open();
    if (got.was_all) was_emptied_ = false;
    if (opened->is_any() || got.was_all) return got;
    std::array<iovec, 2> parts;
    const size_t count = reader_->Room(target, sparing, parts);
    size_t room = 0;
    for (size_t i = 0; i < count; ++i) room += parts[i].iov_len;
    const ssize_t result = readv(socket_.get(), parts.data(), static_cast<int>(count));
    if (std::optional<Got> end = EndOf(result)) return *std::move(end);
    if (result < 0) {
      got.was_all = true;
      return got;
    }
    got.has_moved = true;
    was_emptied_ = static_cast<size_t>(result) < room;
    reader_->Filled(static_cast<size_t>(result));
  }
}

TcpStream::Moved TcpStream::Write(absl::Span<const iovec> parts, absl::Span<std::byte> room) {
  if (!encrypts()) {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return {static_cast<size_t>(sent), false, ""};
    return IsToBeTriedAgain(errno) ? Moved() : Moved{0, true, EndBy(errno)};
  }
  Moved flushed = Flush();
  if (flushed.is_over || has_unsent()) return flushed;
  const RecordWriter::Sealed sealed = writer_->Seal(parts, room);
  const ssize_t sent = send(socket_.get(), room.data(), sealed.bytes, MSG_NOSIGNAL);
  if (sent < 0 && !IsToBeTriedAgain(errno)) return {0, true, EndBy(errno)};
  const absl::Span<const std::byte> rest =
      room.subspan(static_cast<size_t>(std::max<ssize_t>(sent, 0)),
                   sealed.bytes - static_cast<size_t>(std::max<ssize_t>(sent, 0)));
  if (!rest.empty()) unsent_.assign(rest.begin(), rest.end());
  return {sealed.taken, false, ""};
}

TcpStream::Moved TcpStream::Flush() {
  while (has_unsent()) {
    const ssize_t sent = send(socket_.get(), unsent_.data() + unsent_from_,
                              unsent_.size() - unsent_from_, MSG_NOSIGNAL);
    if (sent < 0) return IsToBeTriedAgain(errno) ? Moved() : Moved{0, true, EndBy(errno)};
    unsent_from_ += static_cast<size_t>(sent);
  }
  unsent_from_ = 0;
  if (unsent_.capacity() > 0) unsent_ = std::vector<std::byte>();
  return {};
}

void TcpStream::EndSending() { shutdown(socket_.get(), SHUT_WR); }

}  // namespace coordd
