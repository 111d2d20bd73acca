// State in etcd: `--store etcd:HOST:PORT,...`, for people who need more than one coordd. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"
#include "server/model/state_store.h"
#include "server/store/etcd_client.h"

namespace etcdserverpb {
class RequestOp;
class TxnRequest;
}  // namespace etcdserverpb

namespace coordd {

namespace v1 {
class EtcdMeta;
}

struct EtcdStateOptions {
  std::vector<HostPort> endpoints;
  std::string prefix = "coordd/";
  TlsFiles tls;
  // How long after its last sign of life a leader still is one, in whole seconds: what a fail-over
  // takes.
  absl::Duration lease = absl::Seconds(5);
};

// The keys are PREFIX leader, meta and records/KEY. Whoever makes `leader`, under a lease of its
// own, leads; each write is a transaction that holds only while that very key is there. So a leader
// that was thought dead and wakes up changes nothing, whatever it believes. It believes less and
// less: the lease is counted from before it was asked for, so it ends here before it ends in etcd.
// A new leader waits for a margin after the old one's lease, unless that one said goodbye.
class EtcdStateStore final : public StateStore {
 public:
  EtcdStateStore(EtcdStateOptions etcd, StateStoreOptions options, Clock& clock);
  ~EtcdStateStore() override;

  // Opens the state and leads. ALREADY_EXISTS: somebody leads; try again to take over from it.
  absl::StatusOr<StoredState> Open(std::function<void(absl::Status)> lost) override;
  absl::Status Commit(absl::Span<const StateWrite> writes) override;
  std::string name() const override;

 private:
  struct Look {};  // at the lease, before it is due

  std::string Key(absl::string_view name) const { return etcd_.prefix + std::string(name); }
  absl::Status Campaign();
  absl::Status Led(const std::string& by) const;
  absl::StatusOr<v1::EtcdMeta> ReadMeta();
  absl::Status CheckMeta(const v1::EtcdMeta& meta) const;
  absl::StatusOr<std::map<std::string, std::string>> ReadRecords();
  // Adds to a transaction the condition that we lead.
  void Guard(etcdserverpb::TxnRequest* txn) const;
  void PutMeta(const v1::EtcdMeta& meta, etcdserverpb::TxnRequest* txn) const;
  void KeepLease();  // the thread
  void Resign();

  // Constant after construction, the rest once Open has returned.
  const EtcdStateOptions etcd_;
  const StateStoreOptions options_;
  Clock& clock_;
  std::unique_ptr<EtcdClient> client_;
  std::function<void(absl::Status)> lost_;
  int64_t lease_id_ = 0;
  int64_t leader_revision_ = 0;  // in which our leader key was made
  std::unique_ptr<v1::EtcdMeta> meta_;

  // Thread-safe by itself.
  BoundedQueue<Look> looks_;

  // Guarded by mu_.
  mutable Mutex mu_;
  absl::Time valid_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Status deposed_ ABSL_GUARDED_BY(mu_);  // not OK: somebody else leads

  std::thread thread_;
};

}  // namespace coordd
