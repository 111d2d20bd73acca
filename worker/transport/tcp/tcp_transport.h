// A transport between nodes over TCP, whose ranks believe nobody but each other. (io)
#pragma once

#include <sys/epoll.h>

#include <array>
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
#include "worker/transport/peers/watched_peer.h"
#include "worker/transport/tcp/message_link.h"
#include "worker/transport/tcp/peer_meetings.h"
#include "worker/transport/tcp/poll_set.h"
#include "worker/transport/tcp/tcp_operation.h"
#include "worker/transport/tcp/tcp_stream.h"

namespace coordd {

struct TcpTransportOptions {
  // An IP address of this machine, at which this rank listens, and no other. Empty: that of the
  // first interface that others reach, else the loopback's.
  std::string local_address;
  std::optional<PortRange> ports;  // to listen on; absent: any
  // Whether all that ranks say to each other is encrypted; else who they are is proved, and what
  // follows goes in plain. Equal on all ranks.
  bool encrypts = false;
  // Counts connections that were not believed; null: nobody asks.
  std::shared_ptr<std::atomic<int64_t>> turned_away = nullptr;
};

// Each pair of ranks that has something to do with each other has one connection, which begins with
// the first message to or from a rank: its address is under "tcp/RANK" in the store, for which that
// one call of Progress may wait (kAddressTimeout). So the store outlives the transport. Not
// thread-safe except for Abort. docs/design/tcp.md tells the rest.
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
  struct Peer {
    Peer(Rank rank, LinkMemory& memory) : rank(rank), link(rank, memory) {}

    const Rank rank;
    MessageLink link;
    std::unique_ptr<TcpStream> stream;  // nullptr: not yet, or not any more
    uint32_t events = 0;                // that it is polled for
    bool is_to_flush = false;           // is among to_flush_
    bool has_moved = false;             // something has come since the last look
    HostPort address;                   // where its end of the stream is; port 0: nowhere yet
    WatchedPeer watched;
    // MessageLink::proven_cost() at the last look at what is held; no account reaches the first
    // value.
    uint64_t held_proven = UINT64_MAX;
    absl::Time ask_at = absl::InfiniteFuture();  // unless it changes
  };
  // Of a peer: its connection has ended, it has said what it may not, it does not answer.
  enum class Loss { kEnded, kWrong, kSilent };

  // Of Progress.
  struct Turns {
    uint32_t all = 0;
    uint32_t still = 0;  // the last ones, in which nothing has moved
  };

  absl::Status Listen(const GroupLayout& layout, Store& store, absl::Time deadline);
  Peer& PeerOf(Rank rank);
  TcpOperation& NewOperation(Tag tag, size_t size_bytes);
  void StartReceive(Rank from, TcpOperation& operation);
  void WantsFlush(Peer& peer);
  void MeetWanted();
  bool TakeNews();
  bool IsToLook() const;
  bool Poll();
  bool FlushAll();
  bool Flush(Peer& peer);
  bool Read(Peer& peer);
  absl::Span<std::byte> RoomBeside(Peer& peer);
  void KeepEvents(Peer& peer, bool is_blocked);
  void Lose(Peer& peer, Loss loss, std::string why);
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
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; nullptr: nothing was exchanged yet
  std::vector<Peer*> connected_;
  std::vector<Peer*> wanted_;    // to be connected to
  std::vector<Peer*> to_read_;   // with something that was read ahead
  std::vector<Peer*> to_flush_;  // with something to send
  std::vector<Peer*> flushing_;  // empty between calls, for its memory
  int32_t blocked_ = 0;          // peers whose connection has no room
  Turns turns_;
  absl::Time next_watch_ = absl::InfinitePast();
  std::vector<std::byte> scratch_;  // what is read that has no place yet
  std::vector<std::byte> sealing_;  // of who encrypts: what is about to be sent
};

}  // namespace coordd
