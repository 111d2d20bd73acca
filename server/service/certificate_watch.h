// Reads coordd's certificates and the token of its HTTP again when their files change, and tells in
// time when certificates end. (io)
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/grpc/server_certificates.h"

namespace coordd {

class ServerMetrics;
class WatchedToken;

// Thread-safe. Its thread is `certificates`, so that a slow disk holds up nobody.
class CertificateWatch {
 public:
  static constexpr absl::Duration kLookEvery = absl::Seconds(10);
  // Long enough for whoever has to be asked for new ones.
  static constexpr absl::Duration kWarnBefore = absl::Hours(24 * 30);
  static constexpr absl::Duration kWarnEvery = absl::Hours(24);

  // Both outlive it.
  CertificateWatch(ServerCertificates& certificates, ServerMetrics& metrics, Clock& clock);
  ~CertificateWatch();

  // The token of HTTP, too. Never blocks, as the next one.
  void WatchAlso(std::shared_ptr<WatchedToken> token);
  // Reads all of them now, whether the files seem to have changed or not.
  void Nudge();

 private:
  struct Wish {};
  void Run();
  bool IsGoneOrBack();
  void Reload();
  void ReloadToken();
  void WarnOfEnd(absl::Time now);

  // Constant after construction.
  ServerCertificates& certificates_;
  ServerMetrics& metrics_;
  Clock& clock_;

  // Thread-safe by itself. One is enough: what is read then is what is there then.
  BoundedQueue<Wish> wishes_;

  // Guarded by mu_.
  Mutex mu_;
  std::shared_ptr<WatchedToken> token_ ABSL_GUARDED_BY(mu_);  // null: there is none

  // Touched by the thread only.
  std::string said_, said_of_token_;  // of files that cannot be used; empty: they can
  absl::Time warn_after_ = absl::InfinitePast();
  int looks_gone_ = 0;  // in a row, up to 2, at which a file was not there

  std::thread thread_;
};

}  // namespace coordd
