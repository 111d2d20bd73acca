// etcd's v3 interface over gRPC, one call at a time, on whichever endpoint answers. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"

namespace etcdserverpb {
class LeaseGrantResponse;
class RangeRequest;
class RangeResponse;
class TxnRequest;
class TxnResponse;
}  // namespace etcdserverpb

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace coordd {

// Thread-safe. Each call tries the endpoints in turn, the one that answered last first, and gives
// each `timeout`. UNAVAILABLE: none answered, or etcd has no leader; what was asked for may have
// happened all the same. RESOURCE_EXHAUSTED: etcd's own quota. Messages name the endpoint.
class EtcdClient {
 public:
  // INVALID_ARGUMENT: `tls` cannot be used. REQUIRES: at least one endpoint.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(const std::vector<HostPort>& endpoints,
                                                          const TlsFiles& tls);
  ~EtcdClient();

  absl::StatusOr<etcdserverpb::LeaseGrantResponse> GrantLease(absl::Duration ttl,
                                                              absl::Duration timeout);
  // Renews the lease. Returns how long it lasts from when etcd answered; zero: there is no such
  // lease any more.
  absl::StatusOr<absl::Duration> KeepLease(int64_t id, absl::Duration timeout);
  absl::Status RevokeLease(int64_t id, absl::Duration timeout);
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    absl::Duration timeout);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration timeout);

 private:
  struct Endpoint;
  using Call = std::function<grpc::Status(Endpoint& endpoint, grpc::ClientContext* context)>;

  EtcdClient();
  absl::Status Try(const Call& call, absl::Duration timeout);

  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::atomic<size_t> first_{0};
};

}  // namespace coordd
