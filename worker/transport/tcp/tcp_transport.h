// A transport between nodes over TCP, whose ranks believe nobody but each other. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/net/address.h"
#include "worker/interfaces/transport.h"
#include "worker/transport/peers/peer_probe.h"
#include "worker/transport/tcp/peer_meetings.h"
#include "worker/transport/tcp/poll_set.h"
#include "worker/transport/tcp/tcp_operation.h"
#include "worker/transport/tcp/tcp_peer.h"
#include "worker/transport/tcp/tcp_traffic.h"

namespace coordd {

struct TcpTransportOptions {
  // An IP address of this machine, at which this rank listens, and no other. Empty: that of the
  // first interface that others reach, else the loopback's.
  std::string local_address;
  std::optional<PortRange> ports;  // to listen on; absent: any
  // Whether all that ranks say to each other is encrypted; else who they are is proved, and what
  // follows goes in plain. Equal on all ranks.
  bool encrypts = false;
  // With each other rank, 1 to kTcpConnectionsMax; equal on all ranks.
  int32_t connections = 1;
  // Counts connections that were not believed; null: nobody asks.
  std::shared_ptr<std::atomic<int64_t>> turned_away = nullptr;
};

// Each pair of ranks that has something to do with each other has connections, which begin with the
// first message to or from a rank: its address is under "tcp/RANK" in the store, for which that one
// call of Progress may wait (kAddressTimeout). So the store outlives the transport. Parts of a
// batch, and segments of a transfer, go over all of them in turn, what is neither cut nor has parts
// over the first one. Not thread-safe except for Abort. docs/design/tcp.md tells the rest.
class TcpTransport final : public Transport {
 public:
  // `clock` outlives it.
  explicit TcpTransport(TcpTransportOptions options, Clock& clock = Clock::Real())
      : options_(std::move(options)), clock_(clock) {}
  ~TcpTransport() override;

  absl::string_view name() const override { return "tcp"; }
  // UNAVAILABLE: it cannot listen.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) override;
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override;
  bool Progress() override;
  void LookAtPeers() override;
  int Descriptor() override;
  void Abort() override { aborted_.store(true, std::memory_order_release); }

 private:
  using End = TcpTraffic::End;

  // Of Progress.
  struct Turns {
    uint32_t all = 0;
    uint32_t still = 0;  // the last ones, in which nothing has moved
  };

  absl::Status Listen(const GroupLayout& layout, Store& store, absl::Time deadline);
  TcpPeer& PeerOf(Rank rank);
  TcpConnection& ConnectionFor(Rank rank, Tag tag);
  bool IsWanted(const ConnectionId& id) const;
  TcpOperation& NewOperation(Tag tag, size_t size_bytes);
  void StartReceive(Rank from, Tag tag, TcpOperation& operation);
  void MeetWanted();
  bool TakeNews();
  bool IsToLook() const;
  bool Poll();
  void OnEnd(TcpConnection& connection, End end, std::string why);
  std::string WhereItEnds(const TcpConnection& connection) const;
  void Lose(TcpPeer& peer, const std::string& why, bool is_told = false, bool is_silent = false);
  void WatchPeers();
  void AskForHeld();
  void DropEverything(const absl::Status& status);
  void SayGoodbye();

  // Constant after construction.
  const TcpTransportOptions options_;
  Clock& clock_;

  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Touched by the owner's thread.
  Store* store_ = nullptr;  // nullptr: not connected
  absl::Status dropped_;    // OK: alive; else the end of all operations
  std::optional<ProbePort> probe_port_;
  PollSet polls_;
  PeerMeetings meetings_{polls_, clock_};
  LinkMemory memory_;
  std::vector<std::unique_ptr<TcpPeer>> peers_;  // by rank; nullptr: nothing was exchanged yet
  std::vector<TcpPeer*> wanted_;                 // to be connected to
  TcpTraffic traffic_{polls_};
  Turns turns_;
  absl::Time next_watch_ = absl::InfinitePast();
};

}  // namespace coordd
