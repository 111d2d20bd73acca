// Stands between clients and gRPC: ends TLS, reads the frames of HTTP/2, and closes whoever sends
// what no honest client would. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "server/door/connection_gate.h"
#include "server/door/guard_thread.h"
#include "server/door/name_places.h"
#include "server/door/shared_budget.h"

namespace coordd {

class ConnectionTable;
class ServerCertificates;

// Thread-safe but for Start and Stop, which its owner calls. TLS handshakes are on threads of their
// own (`hello-N`), since they cost a hundred times what a message does: those who are there do not
// wait for those who come. Whoever is let in is on one of the threads `guard-N`.
class ConnectionGuard {
 public:
  struct Calls {
    // gRPC's end of a connection, on any of the threads; the callee closes it.
    std::function<void(int fd)> serve;
    // The TLS handshake of `fd` is over. On a thread `hello-N`.
    std::function<void(int fd, uint64_t cookie)> finished;
    std::function<void(Refusal why)> refused;
  };

  // How many threads of a kind where a process may have so many descriptors, and how many
  // descriptors these take.
  static size_t ThreadsFor(size_t descriptors_max);
  static size_t DescriptorsOf(size_t threads, bool tls);

  struct Sizes {
    size_t threads = 1;  // of a kind
    size_t places = 0;   // connections that are served at a time
  };

  // `certificates`: null where no TLS is spoken. They and `connections` outlive it.
  ConnectionGuard(ServerCertificates* certificates, ConnectionTable& connections,
                  const Sizes& sizes, Clock& clock);
  ~ConnectionGuard() { Stop(absl::ZeroDuration()); }

  // `full`: what one connection too many hears (LetInToRefuse).
  absl::Status Start(Calls calls, absl::Status full);
  // `fd` has been read nothing of. `peer`: with its port.
  void LetIn(OwnedFd fd, const std::string& peer);
  void LetInToRefuse(OwnedFd fd, const std::string& peer);
  // Nobody else gets to gRPC: `serve` is called no more. Idempotent, as Stop.
  void StopLettingIn();
  // What gRPC has said to those who are there is theirs within `grace`.
  void Stop(absl::Duration grace);

 private:
  void Enter(OwnedFd fd, const std::string& peer, bool to_refuse);
  void Begun(GuardThread::Owned connection);
  void Serve(GuardThread::Owned connection);
  // Answers its first call with `status`, and ends it; at once where many others are told.
  void Refuse(GuardThread::Owned connection, Refusal why, const absl::Status& status);
  void Ended(const GuardedConnection& connection);
  GuardThread& Idlest(const std::vector<std::unique_ptr<GuardThread>>& threads) const;
  void Refused(Refusal why, const std::string& text);

  // Constant after Start.
  ServerCertificates* const certificates_;
  ConnectionTable& connections_;
  const size_t threads_;
  Clock& clock_;
  Calls calls_;
  absl::Status full_;
  // Thread-safe by itself.
  std::atomic<bool> stopping_ = false;
  SharedBudgets budgets_;
  NamePlaces places_;
  std::atomic<size_t> told_ = 0;  // by Refuse, and still there
  // In this order: who has begun goes from those to these.
  std::vector<std::unique_ptr<GuardThread>> serving_, beginning_;

  // Guarded by mu_.
  Mutex mu_;
  std::map<Refusal, LogLimit> limits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
