// How the ranks of a generation come to have connections with each other. (io)
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/net/address.h"
#include "common/protocol/types.h"
#include "worker/transport/tcp/meeting.h"
#include "worker/transport/tcp/poll_set.h"
#include "worker/transport/tcp/tcp_listener.h"
#include "worker/transport/tcp/tcp_stream.h"
#include "worker/transport/tcp/tls_keys.h"
#include "worker/transport/tcp/unspoken_ends.h"

namespace coordd {

// One of those that this rank has with another one.
struct ConnectionId {
  Rank rank;
  int32_t number = 0;

  friend bool operator==(const ConnectionId&, const ConnectionId&) = default;
  friend auto operator<=>(const ConnectionId&, const ConnectionId&) = default;
};

// Whoever wants something of the other connects. Where both do, it is the connection of the lower
// rank that stays: who has one under way to a rank that is higher yields to nobody's, and the
// higher one gives its own up. What strangers do ends their connection, and a few of them at a time
// are listened to; where there are more, one goes of the address that has the most, so that
// strangers at one address take no place from ranks at others, while the ranks of a large node may
// have all of them. A rank that gives its connection up, or ends, is no stranger: what a stranger
// is has said something wrong, or nothing until the deadline. Who was turned away for want of room,
// or ended too soon, tries again for kTryFor.
//
// Where two ranks have several connections, that is how they come to the first one. The others are
// made by who has made that one, one after the other: so none of these crosses another, and no more
// callers come at a time than with one. One thread uses it.
class PeerMeetings {
 public:
  // Callers that are not known yet, and how long they may take to prove who they are.
  static constexpr size_t kCallersMax = 64;
  static constexpr absl::Duration kProveWithin = absl::Seconds(10);
  static constexpr absl::Duration kTryFor = absl::Seconds(30);

  struct Options {
    Rank self;
    int32_t world_size = 0;
    bool encrypts = false;
    int32_t connections = 1;  // with each rank
    LinkSecret secret;
    std::optional<HostPort> probe_port;  // this rank's
    // Counts who was not believed; null: nobody asks.
    std::shared_ptr<std::atomic<int64_t>> turned_away = nullptr;
  };
  struct Met {
    ConnectionId id;
    std::unique_ptr<TcpStream> stream;
    bool has_called = false;             // the peer has
    std::optional<HostPort> probe_port;  // the peer's, if it has
    HostPort address;                    // of its end of the stream
  };
  struct NotMet {
    Rank rank;
    std::string why;
  };
  // Whether the peer may still make this connection.
  using IsWanted = std::function<bool(const ConnectionId&)>;

  // `polls` and `clock` outlive it.
  PeerMeetings(PollSet& polls, Clock& clock) : polls_(polls), clock_(clock) {}
  PeerMeetings(const PeerMeetings&) = delete;
  PeerMeetings& operator=(const PeerMeetings&) = delete;

  // Its sockets have the keys below kKeysEnd. UNAVAILABLE.
  absl::Status Open(Options options, TcpListener listener, IsWanted is_wanted);
  static constexpr uint64_t kKeysEnd = uint64_t{1} << 32;

  // Begins to make all connections with a rank. REQUIRES: nobody has before.
  void Connect(Rank rank, const TcpAddress& address);
  // What is being made with this rank.
  void GiveUp(Rank rank);
  // Whether somebody is on the way.
  bool is_busy() const { return !outgoing_.empty() || !callers_.empty(); }
  void OnReady(uint64_t key);
  // What is due: attempts, and the end of patience. To be called behind all OnReady of a turn.
  void Tend();
  // Since the last call.
  std::vector<Met> TakeMet() { return std::exchange(met_, {}); }
  std::vector<NotMet> TakeNotMet() { return std::exchange(not_met_, {}); }
  // Writes that the connection with this rank has ended, and why, and not too often.
  void NoteLost(Rank rank, absl::string_view why);
  bool has_news() const { return !met_.empty() || !not_met_.empty(); }

 private:
  struct Outgoing {
    TcpAddress address;
    std::unique_ptr<Meeting> meeting;  // nullptr: between two attempts
    uint64_t key = 0;
    uint32_t events = 0;
    absl::Time since, next;
    absl::Duration pause;
  };
  struct Caller {
    std::unique_ptr<Meeting> meeting;
    HostPort address;
    uint32_t events = 0;
    absl::Time since;
  };

  uint64_t NewKey() { return next_key_++ % (kKeysEnd - 1) + 1; }
  void Begin(const ConnectionId& id, const TcpAddress& address);
  void Attempt(const ConnectionId& id, Outgoing& outgoing);
  void StepOutgoing(const ConnectionId& id, Outgoing& outgoing);
  void OutgoingMet(const ConnectionId& id, Outgoing& outgoing);
  void TryLater(const ConnectionId& id, Outgoing& outgoing, const std::string& why);
  void Forget(const ConnectionId& id);
  void AcceptCallers();
  void MakeRoom(const HostPort& for_whom);
  void NoteMet(Rank rank, const HostPort& address);
  void NoteEnd(const Caller& caller);
  bool IsOfACrossing(const LinkIdentity& identity, const Caller& caller) const;
  void StepCaller(uint64_t key, Caller& caller);
  void Decide(Caller& caller);
  void TurnAway(const Caller& caller, absl::string_view why);
  void NoteStranger(const HostPort& from, absl::string_view why, absl::string_view claim);
  std::optional<LinkKey> KeyOf(absl::string_view identity) const;
  void KeepEvents(const Meeting& meeting, uint64_t key, uint32_t& events);

  // Constant after construction.
  PollSet& polls_;
  Clock& clock_;

  // Constant after Open.
  Options options_;
  TcpListener listener_;
  IsWanted is_wanted_;
  OpenSslOwned<SSL_CTX> tls_;

  // Touched by the owner's thread.
  uint64_t next_key_ = 0;
  std::map<ConnectionId, Outgoing> outgoing_;
  std::map<uint64_t, ConnectionId> outgoing_keys_;
  std::map<uint64_t, Caller> callers_;  // the oldest first
  std::vector<Met> met_;
  std::vector<NotMet> not_met_;
  std::map<Rank, absl::Time> met_at_;
  UnspokenEnds unspoken_;
  LogLimit log_limit_, lost_limit_;
};

}  // namespace coordd
