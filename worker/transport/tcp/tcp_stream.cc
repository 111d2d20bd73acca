#include "worker/transport/tcp/tcp_stream.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// What goes into one record.
constexpr size_t kStageBytes = size_t{16} << 10;
constexpr size_t kReadAheadBytes = size_t{64} << 10;

bool IsToBeTriedAgain(int error) { return error == EAGAIN || error == EINTR; }

TcpStream::Moved OverBy(int error) {
  return {0, true, absl::StrCat("its connection ended: ", strerror(error))};
}

TcpStream::Moved OverByEnd() { return {0, true, "its connection ended"}; }

}  // namespace

TcpStream::TcpStream(OwnedFd socket, OpenSslOwned<SSL> tls)
    : socket_(std::move(socket)), tls_(std::move(tls)) {
  if (tls_ == nullptr) return;
  // Behind the handshake several records may be read at a time.
  SSL_set_default_read_buffer_len(tls_.get(), kReadAheadBytes);
  SSL_set_read_ahead(tls_.get(), 1);
}

TcpStream::Moved TcpStream::Read(absl::Span<const iovec> parts) {
  if (encrypts()) return ReadTls(parts);
  const ssize_t got = readv(socket_.get(), parts.data(), static_cast<int>(parts.size()));
  if (got > 0) return {static_cast<size_t>(got), false, ""};
  if (got == 0) return OverByEnd();
  return IsToBeTriedAgain(errno) ? Moved() : OverBy(errno);
}

TcpStream::Moved TcpStream::ReadTls(absl::Span<const iovec> parts) {
  Moved moved;
  for (const iovec& part : parts) {
    size_t filled = 0;
    while (filled < part.iov_len) {
      ERR_clear_error();
      size_t got = 0;
      const int result = SSL_read_ex(tls_.get(), static_cast<std::byte*>(part.iov_base) + filled,
                                     part.iov_len - filled, &got);
      if (result != 1) return moved.bytes > 0 ? moved : Over(result);
      filled += got;
      moved.bytes += got;
    }
  }
  return moved;
}

TcpStream::Moved TcpStream::Over(int result) {
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return {};
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return errno == 0 ? OverByEnd() : OverBy(errno);
    case SSL_ERROR_ZERO_RETURN:
      return OverByEnd();
    default:
      return {0, true, absl::StrCat("its connection ended: ", TakeTlsError())};
  }
}

TcpStream::Moved TcpStream::Write(absl::Span<const iovec> parts) {
  if (!encrypts()) {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return {static_cast<size_t>(sent), false, ""};
    return IsToBeTriedAgain(errno) ? Moved() : OverBy(errno);
  }
  Moved flushed = Flush();
  if (flushed.is_over || has_unsent()) return flushed;
  Stage(parts);
  flushed = Flush();
  if (!flushed.is_over) flushed.bytes = stage_bytes_;
  return flushed;
}

void TcpStream::Stage(absl::Span<const iovec> parts) {
  stage_.resize(kStageBytes);
  stage_bytes_ = stage_sent_ = 0;
  for (const iovec& part : parts) {
    const size_t taken = std::min(part.iov_len, kStageBytes - stage_bytes_);
    std::memcpy(stage_.data() + stage_bytes_, part.iov_base, taken);
    stage_bytes_ += taken;
  }
}

TcpStream::Moved TcpStream::Flush() {
  while (has_unsent()) {
    ERR_clear_error();
    size_t sent = 0;
    const int result =
        SSL_write_ex(tls_.get(), stage_.data() + stage_sent_, stage_bytes_ - stage_sent_, &sent);
    if (result != 1) return Over(result);
    stage_sent_ += sent;
  }
  return {};
}

void TcpStream::EndSending() { shutdown(socket_.get(), SHUT_WR); }

}  // namespace coordd
