// A connection of a client's, which stands between it and gRPC. (io)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/grpc/tls_stream.h"
#include "common/net/client_stream.h"
#include "server/door/closing_word.h"
#include "server/door/frame_guard.h"
#include "server/door/http2_refusal.h"
#include "server/door/name_places.h"

namespace coordd {

// Not thread-safe: belongs to one GuardThread at a time. What the client says goes to gRPC, frame
// by frame looked at, over one end of a pair of sockets; what gRPC says goes to the client as it
// is. Neither side is read while what came before waits for the other, so that at most kPieceBytes
// wait each way, and whoever sends too much is held up by his own socket.
class GuardedConnection {
 public:
  static constexpr size_t kPieceBytes = 64 << 10;
  // Room for what is being moved, of whoever has the connection.
  using Piece = std::array<char, kPieceBytes>;

  // What to await of its sockets, as epoll's events.
  struct Interest {
    uint32_t client = 0;
    uint32_t grpc = 0;
  };

  // `peer`: with its port. `cookie`: SocketCookie of `client`. `tls`: null where none is spoken.
  // `over_by`: by when its first exchange is over.
  GuardedConnection(OwnedFd client, uint64_t cookie, std::string peer,
                    std::unique_ptr<TlsStream> tls, absl::Time over_by);

  // The first exchange goes on. True once it is over: then one of the next two comes.
  bool Begin();
  // REQUIRES: the other end of the pair that `grpc` belongs to is gRPC's.
  // `calls`: FrameGuard's. `place`: given back at the end.
  void ServeBy(OwnedFd grpc, std::string grpc_peer, std::shared_ptr<SharedBudget> calls,
               NamePlaces::Place place, absl::Time now);
  // The client's first call is answered with `why`, and then the connection ends.
  void RefuseBy(const absl::Status& why, absl::Time over_by);

  // What epoll tells of its sockets.
  struct Ready {
    bool client = false, grpc = false;  // there may be something to read, or room to write
    bool client_gone = false;           // the connection is no more
    bool grpc_gone = false;             // gRPC has closed its end; what it has said may be unread
  };
  // Moves what can be moved.
  void Move(const Ready& ready, Piece& piece, absl::Time now);
  // There is something to move that no socket tells of.
  bool has_more() const { return has_more_; }
  Interest interest() const;
  // When it ends whatever comes; InfiniteFuture: never.
  absl::Time over_by() const { return over_by_; }
  void GiveUp() { ended_ = true; }
  // It is about to be destroyed.
  void Close(absl::Time now) {
    if (talk_.has_value()) talk_->client.End(now);
  }

  bool ended() const { return ended_; }
  bool serves() const { return talk_.has_value(); }
  bool refuses() const { return refusal_.has_value(); }
  bool is_to_refuse() const { return to_refuse_; }
  void set_to_refuse() { to_refuse_ = true; }
  // Not OK: it was ended for what the client has sent.
  const absl::Status& violation() const { return violation_; }
  // Why gRPC has closed it before the client did: its complaint, or that it gave none. Empty: it
  // has not, or that is its own end, or that of a connection without calls.
  std::string GrpcsReason() const;

  int client_fd() const { return client_.get(); }
  int grpc_fd() const { return grpc_.get(); }
  uint64_t cookie() const { return cookie_; }
  const std::string& peer() const { return peer_; }
  const std::string& grpc_peer() const { return grpc_peer_; }
  const TlsStream* tls() const { return tls_; }
  const ClientStream& stream() const { return *stream_; }

 private:
  // What is looked at of what is said.
  struct Talk {
    FrameGuard client;
    ClosingWord grpc = {};
    NamePlaces::Place place;  // taken as long as it is served
    bool grpc_ended_first = false;
  };
  // What one side has said and the other has not taken yet.
  struct Rest {
    std::string bytes;
    size_t sent = 0;

    bool empty() const { return bytes.empty(); }
    absl::string_view view() const { return absl::string_view(bytes).substr(sent); }
    void Keep(absl::string_view rest);
    void Sent(size_t size);
  };

  void FromClient(Piece& piece, absl::Time now);
  void FromGrpc(Piece& piece, absl::Time now);
  void TakeFromClient(absl::string_view bytes, absl::Time now);
  void ToGrpc(absl::string_view bytes);
  // How many of `bytes` were taken; all of them where gRPC has closed and wants none.
  size_t SendToGrpc(absl::string_view bytes);
  void ToClient(absl::string_view bytes);
  void Flush();
  void EndWhatIsSaid(absl::Time now);
  void EndsBy(absl::Time by);
  void Note(ClientStream::Outcome outcome);

  const uint64_t cookie_;
  const std::string peer_;
  OwnedFd client_;
  OwnedFd grpc_;
  std::string grpc_peer_;
  std::unique_ptr<ClientStream> stream_;
  TlsStream* const tls_;      // stream_, where it is one
  std::optional<Talk> talk_;  // once it is served
  std::optional<Http2Refusal> refusal_;
  Rest to_grpc_, to_client_;
  absl::Time over_by_;
  absl::Status violation_;

  bool to_refuse_ = false;
  bool has_more_ = false;
  bool wants_write_ = false;  // TLS has something to say of its own
  bool client_ended_ = false, grpc_gone_ = false, grpc_ended_ = false, ended_ = false;
};

}  // namespace coordd
