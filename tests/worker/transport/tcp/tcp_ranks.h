// Ranks that talk TCP to each other in one thread, and what else connects to them.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/owned_fd.h"
#include "common/protocol/store_memory.h"
#include "worker/transport/peers/socket_address.h"
#include "worker/transport/tcp/meeting.h"
#include "worker/transport/tcp/tcp_listener.h"
#include "worker/transport/tcp/tcp_transport.h"

namespace coordd::tcp_ranks {

inline constexpr absl::Duration kTcpHangLimit = absl::Minutes(1);
inline constexpr Tag kTcpTag{LaneId{0}, 1};

// What this peer says, all of it, which a connection has room for.
inline size_t Write(TcpStream& stream, absl::Span<const std::byte> said) {
  static std::vector<std::byte> room(size_t{1} << 20);
  const iovec part = {const_cast<std::byte*>(said.data()), said.size()};
  return stream.Write({&part, 1}, absl::MakeSpan(room)).bytes;
}

// The ranks of one generation that this thread drives; the others are the test's.
class TcpRanks {
 public:
  explicit TcpRanks(int32_t world_size) : world_size_(world_size) {}

  TcpTransport& Add(int32_t rank,
                    TcpTransportOptions options = {.local_address = "127.0.0.1", .ports = {}},
                    Clock& clock = Clock::Real()) {
    transports_.push_back(std::make_unique<TcpTransport>(std::move(options), clock));
    EXPECT_EQ(transports_.back()->Connect(Layout(rank), store, absl::InfiniteFuture()),
              absl::OkStatus());
    return *transports_.back();
  }
  GroupLayout Layout(int32_t rank) const { return GroupLayout(Rank{rank}, {{world_size_, 1}}); }
  TcpAddress AddressOf(int32_t rank) {
    return *TcpAddress::Parse(*store.Get(absl::StrCat("tcp/", rank), absl::InfiniteFuture()));
  }
  bool DriveUntil(const std::function<bool()>& condition) {
    const absl::Time limit = Clock::Real().Now() + kTcpHangLimit;
    while (!condition()) {
      for (const auto& transport : transports_) transport->Progress();
      if (Clock::Real().Now() > limit) {
        ADD_FAILURE() << "it hangs";
        return false;
      }
    }
    return true;
  }
  // A message from one to the other.
  void Exchange(TcpTransport& from, int32_t from_rank, TcpTransport& to, int32_t to_rank) {
    for (const size_t size : {size_t{100}, size_t{300000}}) {
      const std::vector<std::byte> sent(size, std::byte{7});
      std::vector<std::byte> received(size);
      std::optional<absl::Status> sent_status, received_status;
      from.Send(Rank{to_rank}, kTcpTag, sent, [&](absl::Status status) { sent_status = status; });
      to.Receive(Rank{from_rank}, kTcpTag, absl::MakeSpan(received),
                 [&](absl::Status status) { received_status = status; });
      ASSERT_TRUE(DriveUntil([&] { return sent_status && received_status; }));
      EXPECT_EQ(*sent_status, absl::OkStatus());
      EXPECT_EQ(*received_status, absl::OkStatus());
      EXPECT_EQ(received, sent);
    }
  }

  InMemoryStore store;

 private:
  const int32_t world_size_;
  std::vector<std::unique_ptr<TcpTransport>> transports_;
};

// From another address of this machine's.
inline OwnedFd ConnectFrom(const std::string& source, const TcpAddress& address) {
  const SocketAddress from = SocketAddress::Of({source, 0}), to = SocketAddress::Of(address.at);
  OwnedFd socket = OpenTcpSocket(from);
  EXPECT_EQ(bind(socket.get(), from.get(), from.size), 0);
  connect(socket.get(), to.get(), to.size);
  return socket;
}

inline OwnedFd ConnectTo(const TcpAddress& address) {
  int error = 0;
  return BeginConnecting(address.at, &error);
}

inline void Say(const OwnedFd& socket, absl::string_view text) {
  EXPECT_EQ(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

inline bool HasEnded(const OwnedFd& socket) {
  std::array<char, 4096> bytes;
  const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), 0);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

// What connects with a key of its own making and says who it is; it has met the rank, or not.
inline std::unique_ptr<Meeting> Meet(TcpRanks& ranks, SSL_CTX* context, const TcpAddress& address,
                                     const LinkIdentity& identity, absl::string_view secret) {
  OwnedFd socket = ConnectTo(address);
  const std::string text = identity.ToText();
  TlsHandshake handshake =
      TlsHandshake::Connecting(context, socket.get(), text, DeriveKey(secret, text));
  auto meeting = std::make_unique<Meeting>(std::move(socket), std::move(handshake),
                                           /*connects=*/true, identity.encrypts);
  ranks.DriveUntil([&] {
    const Meeting::Stage stage = meeting->Step();
    return stage != Meeting::Stage::kConnecting && stage != Meeting::Stage::kProving &&
           stage != Meeting::Stage::kAwaiting;
  });
  return meeting;
}

}  // namespace coordd::tcp_ranks
