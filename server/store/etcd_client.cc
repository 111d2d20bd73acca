#include "server/store/etcd_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/grpc/grpc_status.h"
#include "etcd/v3/etcd.grpc.pb.h"

namespace coordd {
namespace {

// A page of records; etcd's own messages may be larger than gRPC's default.
constexpr int kMaxReceiveBytes = 64 << 20;
// An endpoint whose machine is gone is tried again this often at most.
constexpr int kMaxReconnectMs = 1000;

// etcd says with codes of its own what a caller can do about it.
absl::Status Translate(const grpc::Status& status, const std::string& endpoint) {
  const std::string text =
      absl::StrCat("etcd at ", endpoint, ": ", std::string(status.error_message()));
  const absl::Status plain = FromGrpc(status);
  if (absl::StrContains(text, "database space exceeded")) {
    return absl::ResourceExhaustedError(text);
  }
  if (absl::IsDeadlineExceeded(plain) || absl::IsUnavailable(plain) || absl::IsUnknown(plain) ||
      absl::IsInternal(plain) || absl::IsResourceExhausted(plain) || absl::IsCancelled(plain)) {
    return absl::UnavailableError(text);
  }
  return absl::Status(plain.code(), text);
}

}  // namespace

struct EtcdClient::Endpoint {
  std::string name;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
};

EtcdClient::EtcdClient() = default;
EtcdClient::~EtcdClient() = default;

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Make(const std::vector<HostPort>& endpoints,
                                                             const TlsFiles& tls) {
  COORDD_CHECK(!endpoints.empty());
  COORDD_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFrom(tls));
  std::unique_ptr<EtcdClient> client(new EtcdClient());
  for (const HostPort& address : endpoints) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxReconnectMs);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kMaxReconnectMs / 10);
    const auto channel = grpc::CreateCustomChannel(address.ToString(), credentials, arguments);
    auto endpoint = std::make_unique<Endpoint>();
    endpoint->name = address.ToString();
    endpoint->kv = etcdserverpb::KV::NewStub(channel);
    endpoint->lease = etcdserverpb::Lease::NewStub(channel);
    client->endpoints_.push_back(std::move(endpoint));
  }
  return client;
}

absl::Status EtcdClient::Try(const Call& call, absl::Duration timeout) {
  const size_t first = first_.load();
  absl::Status status;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    const size_t index = (first + i) % endpoints_.size();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(absl::ToInt64Milliseconds(timeout)));
    const grpc::Status answer = call(*endpoints_[index], &context);
    if (answer.ok()) {
      first_.store(index);
      return absl::OkStatus();
    }
    status = Translate(answer, endpoints_[index]->name);
    if (!absl::IsUnavailable(status)) return status;
  }
  return status;
}

absl::StatusOr<etcdserverpb::LeaseGrantResponse> EtcdClient::GrantLease(absl::Duration ttl,
                                                                        absl::Duration timeout) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(std::max<int64_t>(1, absl::ToInt64Seconds(ttl)));
  etcdserverpb::LeaseGrantResponse response;
  COORDD_RETURN_IF_ERROR(Try(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.lease->LeaseGrant(context, request, &response);
      },
      timeout));
  return response;
}

absl::StatusOr<absl::Duration> EtcdClient::KeepLease(int64_t id, absl::Duration timeout) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(id);
  etcdserverpb::LeaseKeepAliveResponse response;
  COORDD_RETURN_IF_ERROR(Try(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        const auto stream = endpoint.lease->LeaseKeepAlive(context);
        const bool answered = stream->Write(request) && stream->Read(&response);
        if (answered) context->TryCancel();  // one answer is all that is wanted
        const grpc::Status end = stream->Finish();
        return answered ? grpc::Status::OK : end;
      },
      timeout));
  return absl::Seconds(response.ttl());
}

absl::Status EtcdClient::RevokeLease(int64_t id, absl::Duration timeout) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(id);
  etcdserverpb::LeaseRevokeResponse response;
  return Try(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.lease->LeaseRevoke(context, request, &response);
      },
      timeout);
}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdClient::Range(
    const etcdserverpb::RangeRequest& request, absl::Duration timeout) {
  etcdserverpb::RangeResponse response;
  COORDD_RETURN_IF_ERROR(Try(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.kv->Range(context, request, &response);
      },
      timeout));
  return response;
}

absl::StatusOr<etcdserverpb::TxnResponse> EtcdClient::Txn(const etcdserverpb::TxnRequest& request,
                                                          absl::Duration timeout) {
  etcdserverpb::TxnResponse response;
  COORDD_RETURN_IF_ERROR(Try(
      [&](Endpoint& endpoint, grpc::ClientContext* context) {
        return endpoint.kv->Txn(context, request, &response);
      },
      timeout));
  return response;
}

}  // namespace coordd
