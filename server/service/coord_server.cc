#include "server/service/coord_server.h"

#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/base/tsan_annotations.h"
#include "common/base/utf8.h"
#include "common/base/version.h"
#include "common/base/watched_token.h"
#include "common/grpc/certs.h"
#include "common/grpc/own_certificate.h"
#include "common/grpc/server_certificates.h"
#include "common/launch/connection_file.h"
#include "common/net/http_server.h"
#include "common/net/own_address.h"
#include "server/door/connection_gate.h"
#include "server/door/connection_table.h"
#include "server/door/grpc_port.h"
#include "server/metrics/prometheus_targets.h"
#include "server/metrics/server_metrics.h"
#include "server/service/admin_service.h"
#include "server/service/caller_shares.h"
#include "server/service/certificate_watch.h"
#include "server/service/coordinator.h"
#include "server/service/http_access.h"
#include "server/service/http_endpoints.h"
#include "server/service/session_service.h"
#include "server/service/state_writer.h"
#include "server/service/store_service.h"
#include "server/service/targets_file.h"

namespace coordd {
namespace {

constexpr int kClusterIdBytes = 8;          // of randomness: tells any two installations apart
constexpr size_t kMaxClusterIdBytes = 128;  // a host's name with a little more
// From Stop to the end of the streams; with the rest it stays below the 2 s that are promised.
constexpr absl::Duration kShutdownGrace = absl::Seconds(1);

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
        audit_(metrics_, clock),
        shares_(clock),
        coordinator_(options.decisions, state_.restored, clock, metrics_),
        writer_(
            *state_.store, clock, metrics_,
            [this](Persisted&& answer) { coordinator_.inbox().Push(Inbound(std::move(answer))); }),
        sessions_(clock, read_bytes_, connections_, coordinator_.inbox(), metrics_, audit_,
                  {.any_metrics_address = options.any_metrics_address}),
        store_(read_bytes_, connections_, shares_, coordinator_.inbox(), metrics_, audit_),
        admin_(read_bytes_, connections_, shares_, coordinator_.inbox(), coordinator_.events(),
               audit_, [this](v1::ServerState* state) { Complete(state); }) {}

  ~GrpcCoordServer() override { Stop("coordd is stopping", absl::ZeroDuration()); }

  absl::Status Run() {
    COORDD_RETURN_IF_ERROR(audit_.Open(options_.audit));
    if (!options_.prometheus_file_sd.empty()) {
      // Nobody may have joined yet. Later it is tried again with each change.
      COORDD_RETURN_IF_ERROR(WriteTargets(options_.prometheus_file_sd, PrometheusTargets({})));
      targets_file_ =
          std::make_unique<TargetsFile>(options_.prometheus_file_sd, coordinator_, clock_);
    }
    coordinator_.Start(Outlets());
    COORDD_RETURN_IF_ERROR(Listen());
    if (options_.http.has_value()) {
      HttpSources sources;
      sources.complete = [this](v1::ServerState* state) { Complete(state); };
      sources.port = port_.get();
      HttpServerOptions http = {.address = *options_.http,
                                .ports = std::nullopt,
                                .connections_max = HttpConnectionsMax(),
                                .one_at_a_time = PagesMadeOneAtATime()};
      WatchHttp(&metrics_, clock_, http);
      if (options_.HttpHasTls()) {
        std::shared_ptr<WatchedToken> token;
        if (!options_.http_token_file.empty()) {
          COORDD_ASSIGN_OR_RETURN(
              token, WatchedToken::Open("--http-token-file", options_.http_token_file));
          certificate_watch_->WatchAlso(token);
        }
        GuardHttp(*certificates_, std::move(token), clock_, http);
      }
      COORDD_ASSIGN_OR_RETURN(
          http_,
          HttpServer::StartWith(http, HttpEndpoints(coordinator_, metrics_, clock_, sources)));
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

  void Reload() override {
    if (certificate_watch_ != nullptr) certificate_watch_->Nudge();
  }

  size_t sessions() const override { return sessions_.size(); }
  const StateLoss& state_loss() const override { return *state_.loss; }

  void Stop(const std::string& reason, absl::Duration resume_within) override {
    if (std::exchange(stopped_, true)) return;
    if (connection_written_) RemoveConnectionFile();
    std::thread http_end = StartThread("stop-http", [this] { http_.reset(); });
    if (port_ != nullptr) port_->StopHealthCheck();
    // First what the state has to say, then the end of every stream and call, then the port.
    coordinator_.Stop(reason, resume_within);
    const absl::Status gone = absl::UnavailableError(reason);
    sessions_.CloseAll(gone);
    store_.CloseAll(gone);
    admin_.CloseAll(gone);
    if (port_ != nullptr) port_->Shutdown(kShutdownGrace);
    COORDD_TSAN_ACQUIRE(&metrics_);  // the last callbacks of sessions have returned
    targets_file_.reset();
    certificate_watch_.reset();
    http_end.join();
    writer_.Stop();
    audit_.Stop();
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
            [this, targets](const Event& event) {
              Audit(event);
              if (targets == nullptr) return;
              if (event.kind == Event::Kind::kGenerationFormed ||
                  event.kind == Event::Kind::kWorkerDeparted) {
                targets->Nudge();
              }
            },
        .tick = [this](absl::Time now) { sessions_.Tick(now); },
        .next_deadline = [this] { return sessions_.NextDeadline(); },
        .shares = &shares_,
    };
  }

  // What the state decides about joins, and nobody's call tells.
  void Audit(const Event& event) {
    AuditEntry entry{.call = Call::kJoin, .caller = event.caller, .job = event.job};
    if (event.kind == Event::Kind::kJobCreated) {
      entry.what = "begins the job";
    } else if (event.kind == Event::Kind::kJoinRefused &&
               (event.code == absl::StatusCode::kPermissionDenied ||
                event.code == absl::StatusCode::kUnauthenticated)) {
      entry.outcome = absl::Status(event.code, event.text);
    } else {
      return;
    }
    audit_.Note(entry);
  }

  absl::Status Listen() {
    for (int why = 0; why < kRefusals; ++why)
      metrics_.ExpectConnectionRefused(RefusalName(static_cast<Refusal>(why)));
    if (options_.tls.enabled()) {
      COORDD_ASSIGN_OR_RETURN(certificates_, ServerCertificates::Load(options_.tls));
      certificate_watch_ = std::make_unique<CertificateWatch>(*certificates_, metrics_, clock_);
    }
    COORDD_ASSIGN_OR_RETURN(port_, GrpcPort::Open({.listen = options_.listen,
                                                   .ports = options_.ports,
                                                   .certificates = certificates_.get(),
                                                   .reflection = options_.grpc_reflection},
                                                  {&sessions_, &store_, &admin_}, read_bytes_,
                                                  connections_, clock_, metrics_));
    MutexLock lock(&mu_);
    listen_address_ = port_->address();
    listening_ = port_.get();
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
      const size_t slash = options_.tls.cert.rfind('/');
      connection.tls =
          OperatorTlsFiles(slash == std::string::npos ? "." : options_.tls.cert.substr(0, slash));
      connection.tls.ca = options_.tls.ca;
    }
    COORDD_RETURN_IF_ERROR(WriteConnectionFile(options_.connection_file, connection));
    connection_written_ = true;
    return absl::OkStatus();
  }

  // Unless another coordd has put its own there.
  void RemoveConnectionFile() const {
    const absl::StatusOr<Connection> there = ReadConnectionFile(options_.connection_file);
    if (there.ok() && there->pid == getpid()) unlink(options_.connection_file.c_str());
  }

  void Complete(v1::ServerState* state) const {
    state->set_version(kVersion);
    state->set_uptime_seconds(absl::ToDoubleSeconds(clock_.Now() - start_));
    state->set_listen(listen_address().ToString());
    state->set_store(store_name_);
    state->set_store_error(writer_.trouble());
    state->set_cluster_id(cluster_id_);
    state->set_node_sessions(static_cast<int32_t>(sessions_.node_sessions()));
    if (const auto http = http_address(); http.has_value())
      state->set_http(absl::StrCat(options_.HttpHasTls() ? "https://" : "", http->ToString()));
    MutexLock lock(&mu_);
    if (listening_ != nullptr) *state->mutable_connections() = listening_->Describe();
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
  AuditLog audit_;
  CallerShares shares_;
  Coordinator coordinator_;
  StateWriter writer_;
  ReadBytes read_bytes_;
  ConnectionTable connections_;
  SessionService sessions_;
  StoreService store_;
  AdminService admin_;
  std::unique_ptr<TargetsFile> targets_file_;
  std::unique_ptr<ServerCertificates> certificates_;  // null: no TLS, as the next one
  std::unique_ptr<CertificateWatch> certificate_watch_;
  std::unique_ptr<GrpcPort> port_;
  std::unique_ptr<HttpServer> http_;

  // Guarded by mu_: clients may ask while the ports are being opened.
  mutable Mutex mu_;
  HostPort listen_address_ ABSL_GUARDED_BY(mu_);
  GrpcPort* listening_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::optional<HostPort> http_address_ ABSL_GUARDED_BY(mu_);

  // Touched by the owner only.
  bool stopped_ = false;
};

// It stands in logs and in a file of lines.
absl::Status CheckClusterId(const std::string& id) {
  const std::string shown = PrintableText(ShortenedText(id, kMaxClusterIdBytes));
  const bool has_edge = !id.empty() && (id.front() == ' ' || id.back() == ' ');
  if (shown == id && !has_edge) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--cluster-id is \"", shown, "\", expected at most ", kMaxClusterIdBytes,
                   " bytes of text without control characters and characters that nobody sees, and "
                   "no space before or behind it"));
}

}  // namespace

bool CoordServerOptions::HttpHasTls() const {
  return http.has_value() && !IsLoopback(http->host) && tls.enabled() && !insecure_http;
}

absl::Status CoordServerOptions::Validate() const {
  COORDD_RETURN_IF_ERROR(decisions.Validate());
  COORDD_RETURN_IF_ERROR(CheckOwnCertificate(tls, TlsSide::kServer));
  if (tls.enabled()) COORDD_RETURN_IF_ERROR(ServerCertificates::Load(tls).status());
  COORDD_RETURN_IF_ERROR(store.Validate());
  COORDD_RETURN_IF_ERROR(CheckClusterId(state.expected_cluster_id));
  if (!IsLoopback(listen.host) && !tls.enabled() && !insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refusing to listen on ", listen.ToString(),
        " without TLS, since anyone who reaches it could read and steer every job; give "
        "--tls-cert, "
        "--tls-key and --tls-ca (`coordctl certs DIR` makes them), or --insecure if the network "
        "itself is trusted"));
  }
  if (http.has_value() && !IsLoopback(http->host) && !HttpHasTls() && !insecure && !insecure_http) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refusing to serve HTTP on ", http->ToString(),
        " without --insecure-http or TLS, since whoever reaches it reads the names, hosts and "
        "states of all jobs; give --http 127.0.0.1:",
        http->port,
        ", or --tls-cert, --tls-key and --tls-ca, or --insecure-http if the network "
        "itself is trusted"));
  }
  if (!http_token_file.empty() && !HttpHasTls()) {
    return absl::InvalidArgumentError(
        "--http-token-file is for HTTP beyond loopback with TLS: a token would be read on its way");
  }
  if (!http_token_file.empty())
    COORDD_RETURN_IF_ERROR(WatchedToken::Check("--http-token-file", http_token_file));
  return absl::OkStatus();
}

absl::StatusOr<OpenedState> CoordServer::Open(const CoordServerOptions& options, Clock& clock) {
  StateStoreOptions state = options.state;
  if (state.new_cluster_id.empty()) state.new_cluster_id = SecretHex(kClusterIdBytes);
  if (state.owner.empty()) {
    // It stands in a file of lines.
    state.owner = PrintableText(absl::StrCat("pid ", getpid(), " on host ", HostName(),
                                             ", --listen ", options.listen.ToString()));
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
