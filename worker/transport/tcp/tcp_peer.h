// One other rank as TcpTransport knows it, and its connections with it. (io)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/net/address.h"
#include "common/protocol/types.h"
#include "worker/transport/peers/watched_peer.h"
#include "worker/transport/tcp/message_link.h"
#include "worker/transport/tcp/tcp_stream.h"

namespace coordd {

class TcpPeer;

// Messages go over one of a peer's connections, whose account of them is its own; that may begin
// before the connection is there.
struct TcpConnection {
  TcpConnection(TcpPeer& with, int32_t index, Rank rank, LinkMemory& memory)
      : peer(with), number(index), link(rank, memory) {}

  TcpPeer& peer;
  const int32_t number;  // among the peer's
  MessageLink link;
  std::unique_ptr<TcpStream> stream;  // nullptr: not yet, or not any more
  uint32_t events = 0;                // that it is polled for
  bool is_to_flush = false;           // is among those that TcpTraffic flushes next
  bool only_reads = false;            // nothing is sent any more
  HostPort address;                   // where the peer's end is; port 0: nowhere yet
  // MessageLink::proven_cost() at the last look at what is held; no account reaches the first
  // value.
  uint64_t held_proven = UINT64_MAX;
  absl::Time ask_at = absl::InfiniteFuture();  // unless it changes
};

// One thread uses it.
class TcpPeer {
 public:
  // That it is to be given up once what it has sent before has been read.
  struct Ending {
    std::string why;
    bool in_message = false;  // a connection has ended in the middle of one
    absl::Time deadline;
  };

  // `memory` outlives it.
  TcpPeer(Rank its_rank, int32_t connections, LinkMemory& memory) : rank(its_rank) {
    for (int32_t number = 0; number < connections; ++number)
      all_.push_back(std::make_unique<TcpConnection>(*this, number, its_rank, memory));
  }

  const Rank rank;
  WatchedPeer watched;
  bool has_moved = false;   // something has come since the last look
  bool has_called = false;  // it has made the connections, else this rank has
  int32_t met = 0;          // how many connections were there, the first ones
  std::optional<Ending> ending;

  TcpConnection& connection(int32_t number) { return *all_[static_cast<size_t>(number)]; }
  const std::vector<std::unique_ptr<TcpConnection>>& all() const { return all_; }
  bool is_met() const { return met == static_cast<int32_t>(all_.size()); }
  // Whether anything can still be read.
  bool is_open() const;
  // Operations under way.
  int64_t pending() const;
  // OK: alive, else how everything has ended.
  const absl::Status& ended() const { return all_.front()->link.ended(); }
  void End(const absl::Status& status);

 private:
  // Constant after construction.
  std::vector<std::unique_ptr<TcpConnection>> all_;
};

}  // namespace coordd
