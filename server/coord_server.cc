#include "server/coord_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/certs.h"
#include "common/connection_file.h"
#include "common/http_server.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/own_address.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "common/thread.h"
#include "common/tsan_annotations.h"
#include "common/version.h"
#include "server/admin_service.h"
#include "server/coordinator.h"
#include "server/http_endpoints.h"
#include "server/server_metrics.h"
#include "server/session_service.h"
#include "server/state_writer.h"
#include "server/store_service.h"
#include "server/targets_file.h"

namespace coordd {
namespace {

// Each bound is of what one client can make coordd hold.
constexpr int kMaxMessageBytes = 1 << 20;  // the protocol's largest is 256 KiB
constexpr int kMaxStreamsPerConnection = 1024;
constexpr size_t kMemoryQuotaBytes = size_t{2} << 30;  // gRPC's buffers, all connections
constexpr int kHandshakeTimeoutMs = 5000;
// A worker whose machine has vanished is noticed after the lease at the latest; the transport's own
// pings free its connection.
constexpr int kKeepaliveTimeMs = 5000;
constexpr int kKeepaliveTimeoutMs = 5000;
// Pings that measure the network, after almost every heartbeat: a third of what an idle job costs.
// gRPC opens its window for the message that is being read, however large, without them.
constexpr int kProbeBandwidth = 0;
constexpr int kMinPingIntervalMs = 4000;  // workers ping every 5 s, a little early at times
// From Stop to the end of the streams; with the rest it stays below the 2 s that are promised.
constexpr int kClusterIdBytes = 8;  // of randomness: tells any two installations apart
constexpr auto kShutdownGrace = std::chrono::seconds(1);

std::string HostName() {
  char name[256] = "?";
  gethostname(name, sizeof(name) - 1);
  return name;
}

class GrpcCoordServer final : public CoordServer {
 public:
  GrpcCoordServer(const CoordServerOptions& options, OpenedState state, Clock& clock,
                  prometheus::Registry& registry)
      : options_(options),
        start_(clock.Now()),
        clock_(clock),
        cluster_id_(state.restored.cluster_id),
        store_name_(state.store->name()),
        state_(std::move(state)),
        metrics_(registry, start_),
        coordinator_(options.decisions, state_.restored, clock, metrics_),
        writer_(
            *state_.store, clock, metrics_,
            [this](Persisted&& answer) { coordinator_.inbox().Push(Inbound(std::move(answer))); }),
        sessions_(clock, coordinator_.inbox(), metrics_),
        store_(coordinator_.inbox(), metrics_),
        admin_(coordinator_.inbox(), coordinator_.events(),
               [this](v1::ServerState* state) { Complete(state); }) {}

  ~GrpcCoordServer() override { Stop("coordd is stopping", absl::ZeroDuration()); }

  absl::Status Run() {
    COORDD_ASSIGN_OR_RETURN(const auto credentials, ServerCredentialsFrom(options_.tls));
    if (!options_.prometheus_file_sd.empty()) {
      targets_file_ =
          std::make_unique<TargetsFile>(options_.prometheus_file_sd, coordinator_, clock_);
    }
    coordinator_.Start(Outlets());
    COORDD_RETURN_IF_ERROR(Listen(credentials));
    if (options_.http.has_value()) {
      COORDD_ASSIGN_OR_RETURN(
          http_, HttpServer::Start(*options_.http, HttpEndpoints(coordinator_, metrics_, clock_,
                                                                 [this](v1::ServerState* state) {
                                                                   Complete(state);
                                                                 })));
      MutexLock lock(&mu_);
      http_address_ = http_->address();
    }
    return WriteConnection();
  }

  HostPort listen_address() const override {
    MutexLock lock(&mu_);
    return listen_address_;
  }
  std::optional<HostPort> http_address() const override {
    MutexLock lock(&mu_);
    return http_address_;
  }

  size_t sessions() const override { return sessions_.size(); }
  const StateLoss& state_loss() const override { return *state_.loss; }

  void Stop(const std::string& reason, absl::Duration resume_within) override {
    if (std::exchange(stopped_, true)) return;
    if (connection_written_) unlink(options_.connection_file.c_str());
    std::thread http_end = StartThread("stop-http", [this] { http_.reset(); });
    if (server_ != nullptr && server_->GetHealthCheckService() != nullptr)
      server_->GetHealthCheckService()->Shutdown();
    // First what the state has to say, then the end of every stream and call, then the port.
    coordinator_.Stop(reason, resume_within);
    const absl::Status gone = absl::UnavailableError(reason);
    sessions_.CloseAll(gone);
    store_.CloseAll(gone);
    admin_.CloseAll(gone);
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    COORDD_TSAN_ACQUIRE(&metrics_);  // the last callbacks of sessions have returned
    targets_file_.reset();
    http_end.join();
    writer_.Stop();
    state_.store.reset();  // another may have it from now on
  }

 private:
  CoordinatorOutlets Outlets() {
    TargetsFile* targets = targets_file_.get();
    return {
        .deliver = [this](const Deliver& deliver) { sessions_.CarryOut(deliver); },
        .close_session = [this](const CloseSession& close) { sessions_.CarryOut(close); },
        .session_ended = [this](SessionId id) { sessions_.OnSessionEnded(id); },
        .store_reply = [this](StoreReply&& reply) { store_.CarryOut(std::move(reply)); },
        .trace_answer = [this](TraceAnswer&& answer) { admin_.CarryOut(std::move(answer)); },
        .exits_answer = [this](ExitsAnswer&& answer) { admin_.CarryOut(std::move(answer)); },
        .dismiss_answer = [this](DismissAnswer&& answer) { admin_.CarryOut(std::move(answer)); },
        .persist = [this](Persist&& persist) { writer_.Add(std::move(persist)); },
        .event =
            [targets](const Event& event) {
              if (targets == nullptr) return;
              if (event.kind == Event::Kind::kGenerationFormed ||
                  event.kind == Event::Kind::kWorkerDeparted) {
                targets->Nudge();
              }
            },
        .tick = [this](absl::Time now) { sessions_.Tick(now); },
        .next_deadline = [this] { return sessions_.NextDeadline(); },
    };
  }

  absl::Status Listen(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    HostPort address = options_.listen;
    if (address.port != 0 || !options_.ports.has_value()) return ListenOn(address, credentials);
    for (int port = options_.ports->first; port <= options_.ports->last; ++port) {
      address.port = static_cast<uint16_t>(port);
      if (ListenOn(address, credentials).ok()) return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat("cannot listen for gRPC on ", address.host, ": all ",
                                               options_.ports->size(), " ports of --port-range ",
                                               options_.ports->ToString(), " are in use"));
  }

  // gRPC does not say. Where the address could be had, it is something else.
  static std::string WhyNot(const HostPort& address) {
    const absl::Status free = TryToListen(address);
    if (!free.ok()) return std::string(free.message());
    return "the address is free, so it is a limit of this process (ulimit -v, -n, -u), or its "
           "certificates";
  }

  absl::Status ListenOn(const HostPort& address,
                        const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address.ToString(), credentials, &port);
    builder.RegisterService(&sessions_);
    builder.RegisterService(&store_);
    builder.RegisterService(&admin_);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.SetResourceQuota(grpc::ResourceQuota("coordd").Resize(kMemoryQuotaBytes));
    // Without this a second coordd would silently share the port.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, kProbeBandwidth);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen for gRPC on ", address.ToString(), ": ", WhyNot(address)));
    }
    MutexLock lock(&mu_);
    listen_address_ = {address.host, static_cast<uint16_t>(port)};
    return absl::OkStatus();
  }

  absl::Status WriteConnection() {
    if (options_.connection_file.empty()) return absl::OkStatus();
    auto reachable = [](HostPort address) {
      address.host = ReachableHere(address.host);
      return address.ToString();
    };
    Connection connection;
    connection.listen = reachable(listen_address());
    if (const auto http = http_address(); http.has_value()) connection.http = reachable(*http);
    connection.pid = getpid();
    connection.version = kVersion;
    if (options_.tls.enabled()) {
      // A client's certificate, where `coordctl certs` has put one beside ours.
      connection.tls.ca = options_.tls.ca;
      const size_t slash = options_.tls.cert.rfind('/');
      const TlsFiles worker =
          WorkerTlsFiles(slash == std::string::npos ? "." : options_.tls.cert.substr(0, slash));
      if (worker.Validate().ok()) {
        connection.tls.cert = worker.cert;
        connection.tls.key = worker.key;
      }
    }
    COORDD_RETURN_IF_ERROR(WriteConnectionFile(options_.connection_file, connection));
    connection_written_ = true;
    return absl::OkStatus();
  }

  void Complete(v1::ServerState* state) const {
    state->set_version(kVersion);
    state->set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now() - start_));
    state->set_listen(listen_address().ToString());
    state->set_store(store_name_);
    state->set_store_error(writer_.trouble());
    state->set_cluster_id(cluster_id_);
    state->set_node_sessions(static_cast<int32_t>(sessions_.node_sessions()));
    if (const auto http = http_address(); http.has_value()) state->set_http(http->ToString());
  }

  // Constant once Run has returned.
  const CoordServerOptions options_;
  const absl::Time start_;
  Clock& clock_;
  const std::string cluster_id_;
  const std::string store_name_;
  bool connection_written_ = false;

  OpenedState state_;  // its store is the writer's while that runs

  // Thread-safe by itself; in the order in which one needs the other.
  ServerMetrics metrics_;
  Coordinator coordinator_;
  StateWriter writer_;
  SessionService sessions_;
  StoreService store_;
  AdminService admin_;
  std::unique_ptr<TargetsFile> targets_file_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HttpServer> http_;

  // Guarded by mu_: clients may ask while the ports are being opened.
  mutable Mutex mu_;
  HostPort listen_address_ ABSL_GUARDED_BY(mu_);
  std::optional<HostPort> http_address_ ABSL_GUARDED_BY(mu_);

  // Touched by the owner only.
  bool stopped_ = false;
};

}  // namespace

absl::Status CoordServerOptions::Validate() const {
  COORDD_RETURN_IF_ERROR(decisions.Validate());
  COORDD_RETURN_IF_ERROR(tls.Validate());
  COORDD_RETURN_IF_ERROR(store.Validate());
  if (!IsLoopback(listen.host) && !tls.enabled() && !insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refusing to listen on ", listen.ToString(),
        " without TLS, since anyone who reaches it could read and steer every job; give "
        "--tls-cert, "
        "--tls-key and --tls-ca (`coordctl certs DIR` makes them), or --insecure if the network "
        "itself is trusted"));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedState> CoordServer::Open(const CoordServerOptions& options, Clock& clock) {
  StateStoreOptions state = options.state;
  if (state.new_cluster_id.empty()) state.new_cluster_id = SecretHex(kClusterIdBytes);
  if (state.owner.empty()) {
    state.owner = absl::StrCat("pid ", getpid(), " on host ", HostName(), ", --listen ",
                               options.listen.ToString());
  }
  return OpenState(options.store, state, clock);
}

absl::StatusOr<std::unique_ptr<CoordServer>> CoordServer::Start(const CoordServerOptions& options,
                                                                Clock& clock,
                                                                prometheus::Registry& registry) {
  COORDD_RETURN_IF_ERROR(options.Validate());
  COORDD_ASSIGN_OR_RETURN(OpenedState state, Open(options, clock));
  return Start(options, std::move(state), clock, registry);
}

absl::StatusOr<std::unique_ptr<CoordServer>> CoordServer::Start(const CoordServerOptions& options,
                                                                OpenedState state, Clock& clock,
                                                                prometheus::Registry& registry) {
  COORDD_RETURN_IF_ERROR(options.Validate());
  const RestoredState& known = state.restored;
  COORDD_LOG(kInfo, "state: ", state.store->name(), ", cluster ", known.cluster_id, ", epoch ",
             ToInt(known.epoch), ", ", known.jobs.size(),
             known.jobs.size() == 1 ? " job is known" : " jobs are known");
  auto server = std::make_unique<GrpcCoordServer>(options, std::move(state), clock, registry);
  COORDD_RETURN_IF_ERROR(server->Run());
  return server;
}

}  // namespace coordd
