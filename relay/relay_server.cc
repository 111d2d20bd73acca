#include "relay/relay_server.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/base/tsan_annotations.h"
#include "common/base/unix_path.h"
#include "common/base/version.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/own_certificate.h"
#include "common/net/http_get.h"
#include "common/net/http_server.h"
#include "common/net/own_address.h"
#include "common/protocol/node_metrics.h"
#include "coordd/v1/session.grpc.pb.h"
#include "relay/node_metrics.h"
#include "relay/node_stream.h"
#include "relay/relay_socket.h"
#include "relay/worker_stream.h"
#include "worker/coordinator/coordinator_channels.h"

namespace coordd {
namespace {

constexpr absl::string_view kUnix = "unix:";
constexpr int kMaxMessageBytes = (1 << 20) - 4096;  // as coordd, with room for whom it is from
constexpr int kMinPingIntervalMs = 4000;  // workers ping every 5 s, a little early at times
// Prometheus waits for ten seconds.
constexpr absl::Duration kScrapeWithin = absl::Seconds(5);
constexpr size_t kScrapeBytesMax = 1 << 20;
// Of workers at a time, each of which takes some 20 KiB; and of those beyond, the ones that are
// told why.
constexpr int64_t kMaxSessions = 4096, kMaxRefusals = 256;
constexpr auto kShutdownGrace = std::chrono::milliseconds(200);

// Wakes the thread that sends what has waited long enough.
class Waker {
 public:
  void Wake() {
    MutexLock lock(&mu_);
    woken_ = true;
    changed_.NotifyOne();
  }
  void Stop() {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyOne();
  }
  // Until `deadline`, or until woken since the last call; false: stopped.
  bool Await(Clock& clock, absl::Time deadline) {
    MutexLock lock(&mu_);
    clock.Await(
        &mu_, &changed_,
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return woken_ || stopping_; }, deadline);
    woken_ = false;
    return !stopping_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

// Counts the node sessions that are not destroyed yet.
class NodeStreamCount {
 public:
  // For one of them: it counts until the last copy is gone.
  std::shared_ptr<void> NewToken() {
    MutexLock lock(&mu_);
    ++alive_;
    return {nullptr, [this](void* /*nothing*/) { Forget(); }};
  }
  void AwaitNone() {
    MutexLock lock(&mu_);
    while (alive_ > 0) changed_.Wait(&mu_);
  }

 private:
  void Forget() {
    MutexLock lock(&mu_);
    --alive_;
    // Under the lock: who waits for it must not free the variable in between.
    changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  int alive_ ABSL_GUARDED_BY(mu_) = 0;
};

// How many there may be of something at a time. Thread-safe; a place may outlive it.
class Places {
 public:
  explicit Places(int64_t most) : most_(most) {}

  // Taken until the last copy is gone; nullptr: there is none.
  std::shared_ptr<void> Take() {
    if (taken_->fetch_add(1, std::memory_order_relaxed) >= most_) {
      taken_->fetch_sub(1, std::memory_order_relaxed);
      return nullptr;
    }
    return {taken_.get(),
            [taken = taken_](void* /*itself*/) { taken->fetch_sub(1, std::memory_order_relaxed); }};
  }

 private:
  const int64_t most_;
  const std::shared_ptr<std::atomic<int64_t>> taken_ = std::make_shared<std::atomic<int64_t>>(0);
};

// The streams of workers. Thread-safe.
class WorkerWatch {
 public:
  explicit WorkerWatch(const WorkerPatience& patience)
      : interval_(std::min(patience.takes, patience.closes) / 4) {}

  void Add(const std::shared_ptr<WorkerStream>& worker) {
    MutexLock lock(&mu_);
    workers_.push_back(worker);
  }
  // Looks at all of them, if it is time. Returns when it is time again.
  absl::Time Look(absl::Time now) {
    if (now < next_) return next_;
    next_ = now + interval_;
    std::vector<std::shared_ptr<WorkerStream>> here;
    {
      MutexLock lock(&mu_);
      std::erase_if(workers_, [](const auto& worker) { return worker.expired(); });
      for (const auto& worker : workers_)
        if (auto stream = worker.lock(); stream != nullptr) here.push_back(std::move(stream));
    }
    for (const auto& stream : here) stream->Look(now);
    return next_;
  }

 private:
  const absl::Duration interval_;

  // Touched by the thread that looks.
  absl::Time next_ = absl::InfinitePast();

  // Guarded by mu_.
  Mutex mu_;
  std::vector<std::weak_ptr<WorkerStream>> workers_ ABSL_GUARDED_BY(mu_);
};

// The end of a call for which there is no place. Lives until OnDone.
class RefusedStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RefusedStream(std::shared_ptr<void> place, const absl::Status& why) : place_(std::move(place)) {
    Finish(ToGrpc(why));
  }

 private:
  void OnDone() override { delete this; }

  const std::shared_ptr<void> place_;
};

class GrpcRelayServer final
    : public RelayServer,
      public v1::Coordinator::WithRawCallbackMethod_Session<v1::Coordinator::Service> {
 public:
  GrpcRelayServer(const RelayServerOptions& options, std::shared_ptr<CoordinatorChannels> channels,
                  Clock& clock)
      : options_(options),
        decisions_(options.decisions),
        channels_(std::move(channels)),
        clock_(clock),
        watch_(options.patience) {
    hello_.set_protocol(kProtocolVersion);
    hello_.set_hostname(options.hostname);
    hello_.set_pid(getpid());
  }

  ~GrpcRelayServer() override {
    http_.reset();
    socket_.reset();
    std::shared_ptr<NodeStream> current;
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      current = std::move(current_);
    }
    waker_.Stop();
    if (flusher_.joinable()) flusher_.join();
    if (current != nullptr) current->Cancel();
    current.reset();
    if (server_ != nullptr) {
      server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
      server_->Wait();
    }
    // A node session lets its channel go on a thread of gRPC's. Were that the last channel or
    // server of the process, gRPC would end its threads there, and that thread would use what it
    // has freed.
    node_streams_.AwaitNone();
    COORDD_TSAN_ACQUIRE(this);
  }

  // Without them each worker serves its own.
  void ServeMetrics() {
    if (!options_.metrics.has_value()) return;
    const HostPort& coordinator = options_.coordinators.front();
    auto http = HttpServer::Start(
        MetricsAddress(*options_.metrics, coordinator), options_.ports,
        {{kNodeMetricsPath, [this](const std::string& /*query*/) { return Metrics(); }}});
    if (!http.ok()) {
      COORDD_LOG(kWarning, "the workers of this node serve their metrics themselves: ",
                 http.status().message());
      return;
    }
    http_ = *std::move(http);
    decisions_.metrics_address =
        AnnouncedAddress(http_->address(), coordinator).ToString() + kNodeMetricsPath;
  }

  absl::Status Run() {
    ServeMetrics();
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    // As coordd: gRPC would inflate a message before it looks at its size.
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    auto socket = RelaySocket::Make(
        std::string(absl::StripPrefix(options_.listen, kUnix)),
        [&](const std::string& path) {
          builder.AddListeningPort(absl::StrCat(kUnix, path), grpc::InsecureServerCredentials());
          server_ = builder.BuildAndStart();
        },
        clock_);
    if (!socket.ok()) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options_.listen, ": ", socket.status().message()));
    }
    socket_ = *std::move(socket);
    flusher_ = StartThread("relay", [this] { FlushWhatIsDue(); });
    return absl::OkStatus();
  }

  std::string Description() const override {
    const auto append = [](std::string* out, const HostPort& one) {
      absl::StrAppend(out, one.ToString());
    };
    return absl::StrCat(
        "workers of one job on ", options_.hostname, " find it at ", options_.listen,
        "; it speaks for them to coordd at ", absl::StrJoin(options_.coordinators, ", ", append),
        options_.tls.enabled()
            ? absl::StrCat(", over TLS with the certificate in ", options_.tls.cert)
            : ", without TLS",
        decisions_.metrics_address.empty()
            ? "; they serve their metrics themselves"
            : absl::StrCat("; it serves their metrics at http://", decisions_.metrics_address));
  }

 private:
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override {
    std::shared_ptr<void> place = sessions_.Take();
    if (place == nullptr) return Refuse(context);
    absl::Status why;
    std::shared_ptr<WorkerStream> worker;
    std::shared_ptr<NodeStream> node;
    {
      MutexLock lock(&mu_);
      worker = std::make_shared<WorkerStream>(StreamId{++last_id_}, context, std::move(place),
                                              options_.patience, clock_);
      if (!stopping_) {
        if (current_ == nullptr || current_->ended()) BeginLocked();
        node = current_;
      }
    }
    const bool added = node != nullptr && node->Add(worker, &why);
    if (node == nullptr) why = absl::UnavailableError("the relay of this node is stopping");
    watch_.Add(worker);
    worker->Begin(worker, added ? node : nullptr);
    if (!added) worker->Close(why);
    return worker.get();
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Refuse(
      grpc::CallbackServerContext* context) {
    const absl::Status why = absl::ResourceExhaustedError(absl::StrCat(
        "the relay of this node has ", kMaxSessions, " sessions of workers, as many as it takes"));
    {
      MutexLock lock(&mu_);
      if (const auto more = refused_limit_.Pass(clock_.Now()); more.has_value())
        COORDD_LOG(kWarning, why.message(), *more);
    }
    std::shared_ptr<void> place = refusals_.Take();
    // Whoever does not read what he is told is told less: gRPC keeps nothing of a call that is
    // cancelled.
    if (place == nullptr) context->TryCancel();
    return new RefusedStream(std::move(place), why);
  }

  void BeginLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    current_ = std::make_shared<NodeStream>(
        decisions_, hello_, clock_, [this] { waker_.Wake(); }, node_streams_.NewToken());
    current_->Begin(current_, channels_->Next());
  }

  // Who does not answer is left out: its lease tells.
  HttpResponse Metrics() {
    const std::shared_ptr<NodeStream> current = Current();
    std::vector<std::string> texts;
    if (current != nullptr) {
      const absl::Time deadline = clock_.Now() + kScrapeWithin;
      for (const std::string& address : current->MetricsAddresses()) {
        const auto place = ParseHostPort(address);
        if (!place.ok()) continue;
        auto text = HttpGet(*place, "/metrics", kScrapeBytesMax, deadline, clock_);
        if (text.ok()) texts.push_back(*std::move(text));
      }
    }
    return {200, "text/plain; version=0.0.4; charset=utf-8", NodeMetrics(texts)};
  }

  std::shared_ptr<NodeStream> Current() const {
    MutexLock lock(&mu_);
    return current_;
  }

  void FlushWhatIsDue() {
    absl::Time due = absl::InfinitePast();
    while (waker_.Await(clock_, due)) {
      due = watch_.Look(clock_.Now());
      const std::shared_ptr<NodeStream> current = Current();
      if (current == nullptr) continue;
      current->Flush();
      due = std::min(due, current->BatchDue());
    }
  }

  // Constant after Run.
  const RelayServerOptions options_;
  RelayOptions decisions_;
  v1::NodeHello hello_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<RelaySocket> socket_;
  std::thread flusher_;

  // Thread-safe by itself.
  const std::shared_ptr<CoordinatorChannels> channels_;
  Clock& clock_;
  Waker waker_;
  WorkerWatch watch_;
  NodeStreamCount node_streams_;
  Places sessions_{kMaxSessions};
  Places refusals_{kMaxRefusals};

  // Guarded by mu_. NodeStream's own lock is taken inside it, never around it.
  mutable Mutex mu_;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<NodeStream> current_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  LogLimit refused_limit_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status RelayServerOptions::Validate() const {
  const absl::string_view path = absl::StripPrefix(listen, kUnix);
  if (!absl::StartsWith(listen, "unix:/") || path.size() > kRelayPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen is \"", listen, "\", expected unix: and a path from / on of at most ",
        kRelayPathBytesMax, " bytes"));
  }
  if (coordinators.empty())
    return absl::InvalidArgumentError("--coordinator is empty, expected HOST:PORT of a coordd");
  return CheckOwnCertificate(tls, TlsSide::kClient);
}

absl::StatusOr<std::unique_ptr<RelayServer>> RelayServer::Start(const RelayServerOptions& options,
                                                                Clock& clock) {
  COORDD_RETURN_IF_ERROR(options.Validate());
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<CoordinatorChannels> channels,
                          CoordinatorChannels::Open(options.coordinators, options.tls));
  auto server = std::make_unique<GrpcRelayServer>(options, std::move(channels), clock);
  COORDD_RETURN_IF_ERROR(server->Run());
  return server;
}

}  // namespace coordd
