#include "server/door/grpc_port.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/descriptor_limit.h"
#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/grpc/server_certificates.h"
#include "server/door/connection_acceptor.h"
#include "server/door/connection_guard.h"
#include "server/door/connection_table.h"
#include "server/door/flood_guard.h"
#include "server/door/own_port_probe.h"
#include "server/door/read_bytes.h"
#include "server/metrics/server_metrics.h"

namespace coordd {
namespace {

// Each bound is of what one client can make coordd hold.
constexpr int kMaxMessageBytes = 1 << 20;  // the protocol's largest is 256 KiB
constexpr int kMaxStreamsPerConnection = 1024;
constexpr size_t kMemoryQuotaBytes = size_t{2} << 30;  // gRPC's buffers, all connections
// Messages that do not end may fill this part of it: beyond all of it gRPC itself would make room,
// by ending streams of whoever it meets first. Calls that have begun may take the same part of
// BufferQuota: on a large machine tens of thousands of ranks have some each.
constexpr size_t kFloodShare = 2;
constexpr int kHandshakeTimeoutMs = 5000;
// A worker whose machine has vanished is noticed after the lease at the latest; the transport's own
// pings free its connection.
constexpr int kKeepaliveTimeMs = 5000;
constexpr int kKeepaliveTimeoutMs = 5000;
// Pings that measure the network, after almost every heartbeat: a third of what an idle job costs.
// gRPC opens its window for the message that is being read, however large, without them.
constexpr int kProbeBandwidth = 0;
constexpr int kMinPingIntervalMs = 4000;  // workers ping every 5 s, a little early at times
// Of /readyz: who scrapes it waits some seconds.
constexpr absl::Duration kProbeTimeout = absl::Seconds(1);
constexpr absl::Duration kProbeEvery = absl::Seconds(1);
// For what gRPC has said at its end to reach the clients.
constexpr absl::Duration kLastWords = absl::Seconds(1);

// By gRPC's servers, the acceptor and HTTP, for themselves: event queues and listening sockets.
constexpr size_t kOpenedLater = 12;

using grpc::experimental::ExternalConnectionAcceptor;

void HandOver(ExternalConnectionAcceptor& acceptor, int fd) {
  ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = fd;
  acceptor.HandleNewConnection(&connection);
}

// gRPC would inflate a message before it looks at its size: nobody of ours compresses, and what is
// compressed all the same is refused with the call.
void RefuseCompression(grpc::ServerBuilder& builder) {
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

// What is linked in registers itself, for all servers of this process.
class WithoutReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins,
                  [](const auto& one) { return one->name() == "proto_server_reflection"; });
  }
};

class AcceptingGrpcPort final : public GrpcPort {
 public:
  AcceptingGrpcPort(ListeningSockets listening, ServerCertificates* certificates,
                    ConnectionTable& connections, const ConnectionBounds& bounds, size_t threads,
                    Clock& clock, ServerMetrics& metrics)
      : address_(listening.address()),
        own_address_(listening.own_address()),
        connections_(connections),
        tls_(certificates != nullptr),
        clock_(clock),
        metrics_(metrics),
        acceptor_(std::move(listening),
                  {.tls = certificates != nullptr,
                   .connections_max = bounds.connections,
                   .unfinished_max = bounds.unfinished,
                   .connections_per_address_max = 0,
                   .waiting_max = bounds.waiting,
                   .refused_max = bounds.refused,
                   .opening_within = absl::Milliseconds(kHandshakeTimeoutMs)},
                  clock),
        guard_(certificates, connections, {.threads = threads, .places = bounds.connections},
               clock) {}

  ~AcceptingGrpcPort() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Start(const std::vector<grpc::Service*>& services, ReadBytes& read,
                     bool reflection) {
    grpc::EnableDefaultHealthCheckService(true);
    if (reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    Build(services, reflection);
    if (server_ == nullptr) return absl::UnavailableError("gRPC's server cannot be started");
    COORDD_RETURN_IF_ERROR(guard_.Start(
        {.serve = [this](int fd) { HandOver(*handover_, fd); },
         .finished = [this](int fd, uint64_t cookie) { acceptor_.Finished(fd, cookie); },
         .refused = [this](Refusal why) { Count(why); }},
        absl::UnavailableError(acceptor_.FullText())));
    ConnectionAcceptor::Calls calls;
    calls.let_in = [this](OwnedFd fd, const std::string& peer) {
      guard_.LetIn(std::move(fd), peer);
    };
    if (tls_) {
      calls.let_in_to_refuse = [this](OwnedFd fd, const std::string& peer) {
        guard_.LetInToRefuse(std::move(fd), peer);
      };
    }
    calls.refused = [this](Refusal why) { Count(why); };
    COORDD_RETURN_IF_ERROR(acceptor_.Start(std::move(calls)));
    flood_guard_ = std::make_unique<FloodGuard>(
        read,
        FloodBounds{.messages = memory_quota_ / kFloodShare, .calls = buffer_quota_ / kFloodShare},
        clock_,
        FloodGuard::Calls{.connections = [this] { return connections_.All(); },
                          .ended = [this] { Count(Refusal::kEndless); }});
    return absl::OkStatus();
  }

  HostPort address() const override { return address_; }
  size_t connections() override { return acceptor_.connections(); }
  size_t connections_max() const override { return acceptor_.options().connections_max; }

  v1::Connections Describe() override {
    v1::Connections all;
    all.set_open(static_cast<int64_t>(connections()));
    all.set_max(static_cast<int64_t>(connections_max()));
    for (size_t why = 0; why < refused_.size(); ++why) {
      const int64_t count = refused_[why].load(std::memory_order_relaxed);
      if (count > 0) (*all.mutable_refused())[RefusalName(static_cast<Refusal>(why))] = count;
    }
    return all;
  }

  absl::Status Answers() override {
    COORDD_RETURN_IF_ERROR(acceptor_.Room());
    MutexLock lock(&mu_);
    if (clock_.Now() < probe_after_) return answers_;
    answers_ = ProbeOwnPort(own_address_, tls_, kProbeTimeout);
    probe_after_ = clock_.Now() + kProbeEvery;
    return answers_;
  }

  void StopHealthCheck() override {
    if (server_ != nullptr && server_->GetHealthCheckService() != nullptr)
      server_->GetHealthCheckService()->Shutdown();
  }

  void Shutdown(absl::Duration grace) override {
    flood_guard_.reset();
    acceptor_.Stop();
    guard_.StopLettingIn();
    if (server_ != nullptr)
      server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
    server_.reset();
    guard_.Stop(kLastWords);
  }

 private:
  void Count(Refusal why) {
    metrics_.OnConnectionRefused(RefusalName(why));
    refused_[static_cast<size_t>(why)].fetch_add(1, std::memory_order_relaxed);
  }

  // What gRPC is given comes from this process: TLS has ended before it.
  void Build(const std::vector<grpc::Service*>& services, bool reflection) {
    grpc::ServerBuilder builder;
    if (!reflection) builder.SetOption(std::make_unique<WithoutReflection>());
    handover_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    for (grpc::Service* service : services) builder.RegisterService(service);
    RefuseCompression(builder);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetResourceQuota(grpc::ResourceQuota("coordd").Resize(memory_quota_));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, kProbeBandwidth);
    server_ = builder.BuildAndStart();
  }

  // Constant after Start.
  const HostPort address_, own_address_;
  ConnectionTable& connections_;
  const bool tls_;
  const size_t buffer_quota_ = BufferQuota();
  const size_t memory_quota_ = std::min(kMemoryQuotaBytes, buffer_quota_);
  Clock& clock_;
  ServerMetrics& metrics_;
  std::unique_ptr<ExternalConnectionAcceptor> handover_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<FloodGuard> flood_guard_;

  // Thread-safe by itself.
  ConnectionAcceptor acceptor_;
  ConnectionGuard guard_;
  std::array<std::atomic<int64_t>, kRefusals> refused_ = {};  // by Refusal

  // Guarded by mu_.
  Mutex mu_;
  absl::Status answers_ ABSL_GUARDED_BY(mu_);
  absl::Time probe_after_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

absl::StatusOr<ListeningSockets> Listen(const GrpcPortOptions& options) {
  HostPort address = options.listen;
  if (address.port != 0 || !options.ports.has_value())
    return ListeningSockets::Open(address, "gRPC");
  for (int port = options.ports->first; port <= options.ports->last; ++port) {
    address.port = static_cast<uint16_t>(port);
    auto sockets = ListeningSockets::Open(address, "gRPC");
    if (sockets.ok()) return sockets;
  }
  return absl::UnavailableError(absl::StrCat("cannot listen for gRPC on ", address.host, ": all ",
                                             options.ports->size(), " ports of --port-range ",
                                             options.ports->ToString(), " are in use"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcPort>> GrpcPort::Open(
    const GrpcPortOptions& options, const std::vector<grpc::Service*>& services, ReadBytes& read,
    ConnectionTable& connections, Clock& clock, ServerMetrics& metrics) {
  COORDD_ASSIGN_OR_RETURN(ListeningSockets listening, Listen(options));
  const Descriptors descriptors = CountDescriptors();
  const size_t threads = ConnectionGuard::ThreadsFor(descriptors.max);
  const size_t own = ConnectionGuard::DescriptorsOf(threads, options.certificates != nullptr);
  const ConnectionBounds bounds =
      BoundsFor(descriptors.max, descriptors.in_use + kOpenedLater + own);
  auto port = std::make_unique<AcceptingGrpcPort>(std::move(listening), options.certificates,
                                                  connections, bounds, threads, clock, metrics);
  COORDD_RETURN_IF_ERROR(port->Start(services, read, options.reflection));
  return port;
}

size_t HttpConnectionsMax() { return HttpShareOf(CountDescriptors().max); }

}  // namespace coordd
