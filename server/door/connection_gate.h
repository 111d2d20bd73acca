// Who gets in at coordd's port, before a byte of theirs is believed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coordd {

// What a connection's first bytes are.
enum class Opening {
  kUndecided,  // too few to tell
  kTls,        // a TLS handshake, its first record whole
  kHttp2,      // HTTP/2 without TLS, with the client's settings
  kOther,
};
// `first_bytes`: the first kOpeningBytes, or all `received` if they are fewer.
Opening OpeningOf(absl::string_view first_bytes, size_t received);
inline constexpr size_t kOpeningBytes = 33;  // as many as OpeningOf needs at most

// Why a connection was not let in: the values of a metric's label.
enum class Refusal {
  kSilent,       // no byte within the time, or one of too many without a byte
  kFull,         // as many are open as may be
  kAddress,      // the same, of its address
  kPlaintext,    // HTTP/2 without TLS where TLS is spoken
  kTls,          // TLS where none is spoken
  kNotHttp2,     // neither
  kHandshake,    // the TLS handshake failed: a wrong certificate, or none
  kDescriptor,   // this process has no descriptors left
  kUnfinished,   // begun, and one of too many of which nothing more came
  kEndless,      // let in before, and ended: its messages or calls fill the memory and do not end
  kFrames,       // let in before, and ended: it has sent frames that no honest client sends
  kName,         // its certificate's name has as many connections as it may have now
  kCertificate,  // its certificate does not say clearly whose it is
  kGrpc,         // let in before, and ended by gRPC, for what it sent or did not
};
inline constexpr int kRefusals = 14;
const char* RefusalName(Refusal why);  // "silent", "full", ...

struct ConnectionGateOptions {
  bool tls = false;
  // Connections that have been let in and are open.
  size_t connections_max = 512;
  // Those of them that have not finished their first exchange: the TLS handshake, or without TLS
  // anything behind the client's settings.
  size_t unfinished_max = 128;
  size_t connections_per_address_max = 0;  // 0: no bound of its own
  // Connections that are not let in yet, or are being told why they are refused.
  size_t waiting_max = 64;
  // Connections that are let in to be told, beside connections_max.
  size_t refused_max = 32;
  // From a connection's acceptance to its first bytes: what gRPC gives a handshake.
  absl::Duration opening_within = absl::Seconds(5);
};

// PURE. Not thread-safe.
//
// Connections are called by their descriptors. One that is accepted waits until its first bytes
// say what it is (Arrived, Opened), is then let in (LetIn), is unfinished until its first exchange
// is over (Finished), and counts until it is gone (Gone). A descriptor of one that was let in is
// closed by others and then used again; so who arrives with the number of one that was let in shows
// that that is gone. What is silent, or begins and goes no further, never keeps somebody out: the
// longest silent of the address with the most who wait makes room, and among those that have as
// many, of the one with more that are unfinished.
class ConnectionGate {
 public:
  explicit ConnectionGate(const ConnectionGateOptions& options);

  // A connection from `address` (without its port) was accepted. The return value is to be closed
  // to make room, -1: nobody; `fd` itself, where all others of its address have spoken.
  int Arrived(int fd, const std::string& address, absl::Time now);

  // What to do with one that waits, now that its first bytes are there.
  struct Verdict {
    enum class Do {
      kWait,      // for more bytes
      kMakeRoom,  // until one that is unfinished finishes, or is closed: WhoMakesRoom; then again
      kLetIn,     // LetIn is called once that has happened, else Gone
      kTell,      // answer it with the reason, as it can hear it; it still waits
    };
    Do what = Do::kWait;
    Refusal why = Refusal::kFull;  // of kTell
  };
  Verdict Opened(int fd, Opening opening);
  // Those whose verdict was kMakeRoom, in the order in which they get in: whose address has fewest
  // that are unfinished, then by arrival.
  std::vector<int> InLine() const;
  bool has_line() const { return in_line_ != 0; }
  // Who could be closed for one of them: unfinished ones of the address with the most, the longest
  // first. `at_once`: the first one, whatever it does, since `fd` is of an address with fewer;
  // otherwise one that its client keeps waiting.
  struct Candidates {
    std::vector<int> fds;
    bool at_once = false;
  };
  Candidates WhoMakesRoom(int fd) const;

  void LetIn(int fd);
  void LetInToRefuse(int fd);
  void Finished(int fd);
  void Closing(int fd);  // an unfinished one was told to end; it counts until it is gone
  void Gone(int fd);     // waiting or let in

  // Those who have waited for too long; they are gone with it.
  std::vector<int> TakeOverdue(absl::Time now);
  absl::Time NextDeadline() const;  // of one who waits; InfiniteFuture: nobody does

  size_t open() const { return let_in_.size() - refused_; }
  size_t waiting() const { return waiting_.size(); }
  size_t closing() const { return closing_.size(); }
  std::vector<int> AllUnfinished() const;  // by arrival
  std::vector<int> AllClosing() const;
  // The next one is refused; whoever counts makes sure first that those let in are still open.
  bool full() const {
    return open() >= options_.connections_max && unfinished_.empty() && closing_.empty();
  }
  bool RoomToRefuse() const { return refused_ < options_.refused_max; }
  bool AddressFull(const std::string& address) const;
  const ConnectionGateOptions& options() const { return options_; }
  // Of one that waits or was let in; empty: neither.
  std::string AddressOf(int fd) const;

 private:
  struct Waiting {
    std::string address;
    absl::Time since;
    uint64_t order = 0;
    bool in_line = false;
  };
  struct LetInOne {
    std::string address;
    uint64_t order = 0;
    bool refused = false;
  };
  struct Count {
    size_t waiting = 0, let_in = 0, unfinished = 0;
  };
  void Enter(int fd, bool refused);
  void ForgetWaiting(int fd);
  void ForgetUnfinished(const LetInOne& one);
  void Forget(const std::string& address);  // where nothing is left to count
  int LongestOfTheMost() const;
  bool RoomForUnfinished() const {
    return open() < options_.connections_max &&
           unfinished_.size() + closing_.size() < options_.unfinished_max;
  }

  const ConnectionGateOptions options_;
  absl::flat_hash_map<int, Waiting> waiting_;
  std::map<uint64_t, int> by_order_;  // of waiting_, by arrival
  uint64_t arrivals_ = 0;
  absl::flat_hash_map<int, LetInOne> let_in_;
  std::map<uint64_t, int> unfinished_, closing_;  // of let_in_, by arrival
  size_t refused_ = 0;                            // of let_in_
  size_t in_line_ = 0;                            // of waiting_
  absl::flat_hash_map<std::string, Count> by_address_;
};

// Of one that gRPC serves: its own, and a pair of sockets between it and gRPC.
inline constexpr size_t kDescriptorsPerConnection = 3;

// How many connections a process with `descriptors_max` descriptors may have, `in_use` of which are
// taken before the first one. Together with the reserve they are never more.
struct ConnectionBounds {
  size_t connections = 0;
  size_t unfinished = 0;  // of these
  size_t waiting = 0;
  size_t refused = 0;
};
// For HTTP, files, etcd, and what is opened in between.
size_t ReserveOf(size_t descriptors_max);
size_t HttpShareOf(size_t descriptors_max);  // of the reserve
ConnectionBounds BoundsFor(size_t descriptors_max, size_t in_use);

}  // namespace coordd
