// Where coordd's state is kept, as `--store` says it. (io)
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/base/mutex.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"
#include "server/model/job_record.h"
#include "server/model/state_store.h"

namespace coordd {

struct StatePlace {
  enum class Kind { kMemory, kSqlite, kEtcd };
  Kind kind = Kind::kMemory;
  std::string directory;                    // kSqlite
  std::vector<HostPort> endpoints;          // kEtcd
  std::string prefix = "coordd/";           // kEtcd: of all keys
  TlsFiles tls;                             // kEtcd
  absl::Duration lease = absl::Seconds(5);  // kEtcd: of the leader

  // INVALID_ARGUMENT: names the option, what was given and what is expected.
  absl::Status Validate() const;
};

// "memory", "sqlite:DIRECTORY", "etcd:HOST:PORT,HOST:PORT" or "etcd:HOST:PORT/PREFIX".
// INVALID_ARGUMENT: one sentence that quotes the text.
absl::StatusOr<StatePlace> ParseStatePlace(absl::string_view text);

// Without --store: a coordd whose port was picked by the system cannot be found again by those who
// knew it, so it keeps its state in memory. Any other has a directory by the number of its port:
// in $STATE_DIRECTORY (systemd), else in $XDG_STATE_HOME/coordd or ~/.local/state/coordd, and where
// that is on a network file system, in /var/tmp/coordd-UID.
StatePlace DefaultStatePlace(const HostPort& listen, const Environment& environment);

// A descriptor that becomes readable when the state has been lost to another coordd. Thread-safe.
class StateLoss {
 public:
  StateLoss();
  ~StateLoss();
  StateLoss(const StateLoss&) = delete;
  StateLoss& operator=(const StateLoss&) = delete;

  void Raise(const absl::Status& why);
  int fd() const { return fd_; }
  absl::Status why() const;  // OK: it has not

 private:
  const int fd_;
  mutable Mutex mu_;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
};

struct OpenedState {
  std::unique_ptr<StateStore> store;
  RestoredState restored;
  std::shared_ptr<StateLoss> loss;
};

// Opens the state. The codes are StateStore::Open's, and DATA_LOSS also for records that cannot be
// read. `clock` outlives it.
absl::StatusOr<OpenedState> OpenState(const StatePlace& place, const StateStoreOptions& options,
                                      Clock& clock);

}  // namespace coordd
