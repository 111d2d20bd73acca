// coordd's port: accepts connections itself, and hands on those that may get in. gRPC 1.51's own
// listener stops accepting for ever once descriptors have run out (CVE-2023-4785). (io)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "common/net/listening_sockets.h"
#include "server/door/connection_gate.h"
#include "server/door/http2_refusal.h"

namespace coordd {

// Thread-safe but for Start and Stop, which its owner calls. Its thread is `accept`.
class ConnectionAcceptor {
 public:
  struct Calls {
    // On the thread `accept`. `peer`: with its port.
    std::function<void(OwnedFd fd, const std::string& peer)> let_in;
    // The same for one connection too many that speaks TLS, so that it hears why. May be empty.
    std::function<void(OwnedFd fd, const std::string& peer)> let_in_to_refuse;
    std::function<void(Refusal why)> refused;
  };

  ConnectionAcceptor(ListeningSockets listening, const ConnectionGateOptions& options,
                     Clock& clock);
  ~ConnectionAcceptor() { Stop(); }

  absl::Status Start(Calls calls);
  void Stop();  // nobody is let in any more; the ports are closed. Idempotent.

  // The TLS handshake of one that was let in is over.
  void Finished(int fd, uint64_t cookie);

  // Connections that were let in and are open, as of now.
  size_t connections();
  // UNAVAILABLE: the next connection would be refused, and why.
  absl::Status Room();
  std::string FullText() const;  // for one connection too many
  const ConnectionGateOptions& options() const { return options_; }
  const ListeningSockets& listening() const { return listening_; }

 private:
  struct Waiting {
    OwnedFd fd;
    std::string peer;  // with its port
    Opening opening = Opening::kUndecided;
    std::optional<Http2Refusal> refusal;
    bool told = false;  // everything was said: its end is awaited
  };
  struct Handed {  // to whoever serves it
    uint64_t cookie = 0;
    std::string peer;
    uint64_t opening_bytes = 0;
    absl::Time since;
  };

  void Run();
  int PollTimeout(absl::Time now);
  void AcceptAll(int listener);
  void Accepted(OwnedFd fd, const std::string& host, uint16_t port);
  void AcceptWithoutDescriptors(int listener);
  void Look(int fd);    // there may be something to read
  void Decide(int fd);  // on one whose opening is known
  void LetIn(int fd, bool to_refuse);
  void Tell(int fd, Opening opening, Refusal why);
  void ContinueTelling(int fd);
  void Close(int fd);
  void CloseOverdue(absl::Time now);
  void Refused(Refusal why, const std::string& text);  // counts and writes it
  void SweepLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // In connection_line.cc: those that have to wait for room among the unfinished.
  void LetInLine(absl::Time now);
  void RefuseInLine(const Waiting& one);  // unless it was refused for something else
  void LookForRoom(absl::Time now);
  void MakeRoom(const std::vector<int>& line, absl::Time now);
  int ChooseLocked(const ConnectionGate::Candidates& candidates, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetClosedLocked(const std::vector<int>& fds) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsFinishedLocked(const Handed& one, int fd) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after Start.
  const ConnectionGateOptions options_;
  Clock& clock_;
  ListeningSockets listening_;
  Calls calls_;
  std::thread thread_;
  OwnedFd epoll_;
  OwnedFd wake_;

  // Touched by the thread only.
  OwnedFd reserve_;  // given up to accept, and then close, when there are no others
  std::map<int, Waiting> waiting_;
  std::map<Refusal, LogLimit> limits_;
  absl::Time look_after_ = absl::InfinitePast();

  // Guarded by mu_.
  Mutex mu_;
  ConnectionGate gate_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<int, Handed> handed_ ABSL_GUARDED_BY(mu_);
  absl::Time sweep_after_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
