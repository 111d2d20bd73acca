// The bytes of one connection behind its handshake: in plain, or encrypted. (io)
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/owned_fd.h"
#include "worker/transport/tcp/tcp_tls.h"

namespace coordd {

// Owns the socket, which does not block. One thread uses it.
class TcpStream {
 public:
  struct Moved {
    size_t bytes = 0;
    bool is_over = false;  // nothing will be moved any more
    std::string why;       // it is over, for people
  };

  // `tls`: for who encrypts; else nullptr.
  TcpStream(OwnedFd socket, OpenSslOwned<SSL> tls);

  int socket() const { return socket_.get(); }
  bool encrypts() const { return tls_ != nullptr; }
  // Some bytes into these, as many as there are; 0: none now.
  Moved Read(absl::Span<const iovec> parts);
  // Whether bytes have come that are here and not at the socket any more, which then tells of none.
  bool has_buffered() const { return encrypts() && SSL_has_pending(tls_.get()) == 1; }
  // Some bytes of these; 0: none now. What was taken may still be here, to be sent first by the
  // next Write or Flush.
  Moved Write(absl::Span<const iovec> parts);
  // Whether something is still here, and as much of it as can be sent.
  Moved Flush();
  bool has_unsent() const { return stage_sent_ < stage_bytes_; }
  // Nothing more is sent; what has been is delivered.
  void EndSending();

 private:
  Moved ReadTls(absl::Span<const iovec> parts);
  void Stage(absl::Span<const iovec> parts);
  Moved Over(int result);

  OwnedFd socket_;
  OpenSslOwned<SSL> tls_;
  // What TLS has been given: it wants the same bytes again when they could not be sent.
  std::vector<std::byte> stage_;  // with no bytes until it is needed
  size_t stage_bytes_ = 0, stage_sent_ = 0;
};

}  // namespace coordd
