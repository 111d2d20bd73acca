// One connection between two ranks until both know that it is theirs. (io)
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/net/address.h"
#include "worker/transport/tcp/tcp_frame.h"
#include "worker/transport/tcp/tcp_stream.h"
#include "worker/transport/tcp/tls_handshake.h"

namespace coordd {

// Who connects waits for a verdict behind the handshake and sends nothing before it, so that of two
// connections that cross each other either can be given up.
class Meeting {
 public:
  enum class Stage {
    kConnecting,  // of who connects
    kProving,     // the handshake
    kAwaiting,    // of who connects: the verdict
    kProven,      // of who was connected to: a verdict is wanted
    kMet,
    kYielded,  // the peer has begun a connection of its own
    kEnded,    // by the peer, who may have had no room
    kRefused,  // nobody listens there
    kFailed,
  };

  Meeting(OwnedFd socket, TlsHandshake handshake, bool connects, bool encrypts)
      : socket_(std::move(socket)),
        handshake_(std::move(handshake)),
        encrypts_(encrypts),
        connects_(connects),
        stage_(connects ? Stage::kConnecting : Stage::kProving) {}

  int socket() const { return stream_ != nullptr ? stream_->socket() : socket_.get(); }
  Stage stage() const { return stage_; }
  // Goes on as far as it can. REQUIRES: something has happened at the socket.
  Stage Step();
  bool wants_write() const { return stage_ == Stage::kConnecting || wants_write_; }
  const std::string& failure() const { return failure_; }
  // As TlsHandshake's.
  const std::string& identity() const { return handshake_->identity(); }
  bool has_heard() const { return handshake_->has_heard(); }
  // The verdict; afterwards it is kMet, kEnded or kFailed. REQUIRES: kProven.
  void Answer(FrameKind verdict);
  // REQUIRES: kMet.
  std::unique_ptr<TcpStream> TakeStream() { return std::move(stream_); }

 private:
  Stage Turn(Stage stage) { return stage_ = stage; }
  Stage Fail(Stage stage, std::string why);
  Stage Connect();
  Stage Prove();
  Stage Await();

  OwnedFd socket_;
  std::optional<TlsHandshake> handshake_;
  const bool encrypts_;
  const bool connects_;
  Stage stage_;
  bool wants_write_ = false;
  std::unique_ptr<TcpStream> stream_;  // behind the handshake
  EncodedHeader verdict_ = {};
  size_t verdict_bytes_ = 0;
  std::string failure_;
};

}  // namespace coordd
