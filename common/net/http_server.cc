// One thread talks: it accepts, reads requests and writes answers without ever waiting for one
// client. Whole requests are answered by a few others, which never see a socket.
#include "common/net/http_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/base/utf8.h"
#include "common/net/handshake_limit.h"
#include "common/net/http_answer.h"
#include "common/net/http_connection.h"
#include "common/net/http_request.h"
#include "common/net/listening_sockets.h"
#include "common/net/peer_address.h"
#include "common/net/request_queue.h"

namespace coordd {
namespace {

constexpr int kHandlerThreads = 4;
constexpr int kEventsPerTurn = 64;
constexpr size_t kAcceptsPerTurn = 64;  // between two looks at those who are there
constexpr char kTlsHandshake = 0x16;    // the first byte of whoever speaks TLS
constexpr absl::Duration kRequestWithin = absl::Seconds(2);
// With what a handler takes: a state of 131,072 workers has some 50 MiB.
constexpr absl::Duration kAnswerWithin = absl::Seconds(10);
// However many come behind it: time to send a request that fits into a packet.
constexpr absl::Duration kUndisturbed = absl::Milliseconds(100);
constexpr absl::Duration kCloseWithin = absl::Seconds(1);  // after the answer
// When nobody can be accepted: descriptors have run out, or all who are there have just come.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(10);

struct Answered {
  uint64_t id = 0;
  HttpRequest request;
  std::string bytes;
};

class EpollHttpServer final : public HttpServer {
 public:
  EpollHttpServer(ListeningSockets listening, const HttpServerOptions& options,
                  std::map<std::string, HttpHandler> handlers)
      : options_(options),
        handlers_(std::move(handlers)),
        connections_max_(std::max<size_t>(options.connections_max, 1)),
        listening_(std::move(listening)),
        queue_({options.urgent.begin(), options.urgent.end()}, options.one_at_a_time) {}

  ~EpollHttpServer() override {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mu_);
      stopping_ = true;
    }
    queue_.Stop();
    eventfd_write(wake_.get(), 1);
    thread_.join();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Run() {
    epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
    wake_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_.valid() || !wake_.valid())
      return absl::UnavailableError(
          absl::StrCat("HTTP requests cannot be awaited: ", std::strerror(errno)));
    Await(wake_.get(), kWake, EPOLLIN, EPOLL_CTL_ADD);
    for (const OwnedFd& listener : listening_.sockets())
      Await(listener.get(), kListener + static_cast<uint64_t>(listener.get()), EPOLLIN,
            EPOLL_CTL_ADD);
    thread_ = StartThread("http-accept", [this] { Talk(); });
    for (int i = 0; i < kHandlerThreads; ++i)
      threads_.push_back(StartThread("metrics-http", [this] { AnswerAll(/*urgent_only=*/false); }));
    if (queue_.has_urgent_paths())
      threads_.push_back(StartThread("urgent-http", [this] { AnswerAll(/*urgent_only=*/true); }));
    return absl::OkStatus();
  }

  HostPort address() const override { return listening_.address(); }

 private:
  using Connection = HttpConnection;
  using Connections = std::map<uint64_t, Connection>;  // by number, so the oldest is the first

  // Numbers in epoll's events: connections count on from kFirstConnection.
  static constexpr uint64_t kWake = 0, kListener = 1, kFirstConnection = uint64_t{1} << 32;

  void Await(int fd, uint64_t id, uint32_t what, int operation) {
    epoll_event event = {};
    event.events = what;
    event.data.u64 = id;
    epoll_ctl(epoll_.get(), operation, fd, &event);
  }

  void Talk() {
    epoll_event events[kEventsPerTurn];
    while (!Stopping()) {
      const int ready = epoll_wait(epoll_.get(), events, kEventsPerTurn, PollTimeout());
      for (int i = 0; i < ready; ++i) {
        const uint64_t id = events[i].data.u64;
        if (id == kWake) {
          TakeAnswers();
        } else if (id < kFirstConnection) {
          AcceptAll(static_cast<int>(id - kListener));
        } else if (const auto found = connections_.find(id); found != connections_.end()) {
          Go(found);
        }
      }
      const absl::Time now = clock_.Now();
      for (auto at = connections_.begin(); at != connections_.end();) {
        const auto one = at++;
        if (one->second.deadline > now) continue;
        if (one->second.state == Connection::State::kBeginning && one->second.has_handshake)
          Refused(HttpRefusal::kHandshake, one->second.peer, "it has not gone on for 2 s");
        Drop(one);
      }
    }
  }

  bool Stopping() const {
    MutexLock lock(&mu_);
    return stopping_;
  }

  int PollTimeout() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [id, one] : connections_) next = std::min(next, one.deadline);
    if (next == absl::InfiniteFuture()) return -1;
    const absl::Duration wait = absl::Ceil(next - clock_.Now(), absl::Milliseconds(1));
    return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(wait), 0, 60000));
  }

  void AcceptAll(int listener) {
    for (size_t i = 0; i < std::min(connections_max_, kAcceptsPerTurn); ++i) {
      const bool full = connections_.size() >= connections_max_;
      pollfd comes = {listener, POLLIN, 0};
      if (full && poll(&comes, 1, /*timeout in ms=*/0) != 1) return;  // room for nobody is not made
      // On loopback all have one address: whoever comes waits for whoever has had time.
      if (full && listening_.loopback() && !MakeRoom()) return Pause();
      sockaddr_storage from = {};
      socklen_t size = sizeof(from);
      OwnedFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&from), &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        if (exhausted && !MakeRoom()) Pause();
        return;
      }
      PeerAddress peer = PeerAddressOf(from);
      if (full && !listening_.loopback() && !MakeRoomAmong(peer.block)) {
        Refused(HttpRefusal::kFull, peer, "all places are taken by requests that are answered");
        continue;
      }
      Add(std::move(fd), std::move(peer));
    }
  }

  void Add(OwnedFd fd, PeerAddress peer) {
    const uint64_t id = ++last_id_;
    const int number = fd.get();
    Await(number, id, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, EPOLL_CTL_ADD);
    ++held_[peer.block];
    const absl::Time now = clock_.Now();
    const auto at = connections_.emplace(
        id, Connection{.fd = std::move(fd),
                       .peer = std::move(peer),
                       .stream = options_.stream == nullptr ? PlainStream(number) : nullptr,
                       .since = now,
                       .deadline = now + kRequestWithin});
    Go(at.first);  // who asks in the same breath is not in the way of the next one
  }

  void Drop(Connections::iterator at) {
    Connection& one = at->second;
    Count(one, 0);
    if (one.state == Connection::State::kHandling) queue_.Remove(at->first);
    if (one.has_handshake) limit_.Left(one.peer.block);
    const auto held = held_.find(one.peer.block);
    if (--held->second == 0) held_.erase(held);
    connections_.erase(at);
  }

  void Refused(HttpRefusal why, const PeerAddress& peer, const std::string& said) const {
    if (options_.refused != nullptr) options_.refused(why, peer.text, said);
  }

  // The port stays readable, so its next look is after this, or at the end.
  void Pause() const {
    pollfd end = {wake_.get(), POLLIN, 0};
    poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kAcceptPause)));
  }

  // Ends the oldest connection that waits for its client: one that has been answered, else one
  // whose request is awaited, else one that does not take its answer; else one whose request waits.
  bool MakeRoom() {
    return MakeRoomOf([](const Connection&) { return true; }, kUndisturbed, "it is the oldest");
  }

  // The address that holds the most places makes room, though it be that of who comes.
  bool MakeRoomAmong(const std::string& comes) {
    const auto most =
        std::max_element(held_.begin(), held_.end(), [&](const auto& a, const auto& b) {
          return std::tuple(a.second, a.first == comes) < std::tuple(b.second, b.first == comes);
        });
    if (most != held_.end() &&
        MakeRoomOf([&](const Connection& one) { return one.peer.block == most->first; },
                   absl::ZeroDuration(), "its address holds the most of them"))
      return true;
    return MakeRoom();
  }

  template <typename Among>
  bool MakeRoomOf(const Among& among, absl::Duration undisturbed, const char* why_this_one) {
    using State = Connection::State;
    const absl::Time now = clock_.Now();
    for (const State state :
         {State::kClosing, State::kBeginning, State::kReading, State::kWriting, State::kHandling}) {
      const absl::Time latest =
          state == State::kClosing ? absl::InfiniteFuture() : now - undisturbed;
      const auto oldest = std::find_if(connections_.begin(), connections_.end(), [&](auto& one) {
        return one.second.state == state && one.second.since <= latest && among(one.second) &&
               (state != State::kHandling || queue_.Remove(one.first));
      });
      if (oldest == connections_.end()) continue;
      if (state != State::kClosing) Refused(HttpRefusal::kFull, oldest->second.peer, why_this_one);
      Drop(oldest);
      return true;
    }
    return false;
  }

  // Does what can be done without waiting.
  void Go(Connections::iterator at) {
    Connection& one = at->second;
    if (one.state == Connection::State::kBeginning && !Begin(one)) return Drop(at);
    if (one.state == Connection::State::kReading) Read(at->first, one);
    if (one.state == Connection::State::kWriting) Write(one);
    if (one.state != Connection::State::kClosing) return;
    // What is not read when it is closed would be answered with a reset, which overtakes us.
    char ignored[4096];
    ssize_t got = 0;
    for (int i = 0; i < kEventsPerTurn; ++i) {
      got = recv(one.fd.get(), ignored, sizeof(ignored), MSG_DONTWAIT);
      if (got <= 0) break;
    }
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) Drop(at);
  }

  // False: the connection is to be closed.
  bool Begin(Connection& one) {
    if (one.stream == nullptr) {
      char first = 0;
      const ssize_t got = recv(one.fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
      if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
      if (first != kTlsHandshake) return SayThatThisIsHttps(one);
      if (!limit_.Begin(one.peer.block, clock_.Now())) {
        Refused(HttpRefusal::kAddressFull, one.peer, "");
        return false;
      }
      one.has_handshake = true;
      one.stream = options_.stream(one.fd.get());
      if (one.stream == nullptr) return false;
    }
    const ClientStream::Outcome outcome = one.stream->Begin();
    if (IsAwaited(outcome)) return true;
    const bool begun = outcome == ClientStream::Outcome::kDone;
    if (begun && std::exchange(one.has_handshake, false)) limit_.Finished(one.peer.block);
    const std::string& failure = one.stream->failure();
    if (!begun && !failure.empty()) Refused(HttpRefusal::kHandshake, one.peer, failure);
    one.state = begun ? Connection::State::kReading : Connection::State::kClosing;
    return true;
  }

  bool SayThatThisIsHttps(Connection& one) {
    Refused(HttpRefusal::kPlaintext, one.peer, "");
    one.stream = PlainStream(one.fd.get());
    BeginAnswer(one, WrittenAnswer({.status = 400,
                                    .body = "400: found no TLS, expected https: write https:// "
                                            "instead of http://\n"},
                                   /*with_body=*/true));
    return true;
  }

  void Read(uint64_t id, Connection& one) {
    char bytes[4096];
    while (one.bytes.size() <= kMaxHttpRequestBytes) {
      const ClientStream::Moved got = one.stream->Read(bytes, sizeof(bytes));
      if (IsAwaited(got.outcome)) return;
      if (got.outcome != ClientStream::Outcome::kDone) {
        one.state = Connection::State::kClosing;
        return;
      }
      one.bytes.append(bytes, got.bytes);
      if (one.bytes.size() > kMaxHttpRequestBytes) break;
      std::optional<HttpRequest> request = ParseHttpRequest(one.bytes);
      if (!request.has_value()) continue;
      if (const auto refused = Refuse(one, *request); refused.has_value())
        return BeginAnswer(one, WrittenAnswer(*refused, request->method != "HEAD"));
      const size_t expected = sizes_.Of(*request);
      if (!MakeRoomForAnswer(expected)) return BeginAnswer(one, RefusedAnswer(one, expected));
      Count(one, expected);
      one.state = Connection::State::kHandling;
      one.deadline = clock_.Now() + kAnswerWithin;
      queue_.Add({id, *std::move(request)});
      return;
    }
    BeginAnswer(
        one, WrittenAnswer({.status = 431, .body = "431: a request has at most 16384 bytes here\n"},
                           /*with_body=*/true));
  }

  // What needs no handler.
  std::optional<HttpResponse> Refuse(const Connection& one, const HttpRequest& request) const {
    auto refused = RefusedByForm(request, listening_.loopback() ? listening_.address().host : "");
    if (refused.has_value()) return refused;
    absl::Status may;
    if (options_.may_ask != nullptr) may = options_.may_ask(*one.stream, one.peer.block, request);
    if (!may.ok()) {
      Refused(request.authorization.empty() ? HttpRefusal::kUnauthorized : HttpRefusal::kToken,
              one.peer,
              absl::StrCat(PrintableText(ShortenedText(request.path, 100)), ": ", may.message()));
      return HttpResponse{.status = 401, .body = absl::StrCat("401: ", may.message(), "\n")};
    }
    return std::nullopt;
  }

  void BeginAnswer(Connection& one, std::string bytes) {
    one.bytes = std::move(bytes);
    Count(one, one.bytes.size());
    one.state = Connection::State::kWriting;
    one.since = clock_.Now();
    one.deadline = one.since + kAnswerWithin;
    Write(one);
  }

  void Write(Connection& one) {
    if (!WriteAnswer(one)) return;
    Count(one, 0);
    one.bytes = std::string();
    shutdown(one.fd.get(), SHUT_WR);
    one.state = Connection::State::kClosing;
    one.deadline = clock_.Now() + kCloseWithin;
  }

  void Count(Connection& one, size_t answer_bytes) {
    answers_held_ -= one.counted;
    one.counted = IsCounted(answer_bytes) ? answer_bytes : 0;
    answers_held_ += one.counted;
  }

  // Whether so many bytes of an answer may be there, beside those that are or will be; whose
  // reader has had time makes room.
  bool MakeRoomForAnswer(size_t bytes) {
    const size_t others_max = std::max(options_.answer_bytes_max, bytes) - bytes;
    if (!IsCounted(bytes) || answers_held_ <= others_max) return true;
    const absl::Time latest = clock_.Now() - options_.answer_undisturbed;
    std::vector<Connections::iterator> late;  // the oldest first
    size_t held = answers_held_;
    for (auto at = connections_.begin(); at != connections_.end() && held > others_max; ++at) {
      if (at->second.state != Connection::State::kWriting || at->second.counted == 0 ||
          at->second.since > latest)
        continue;
      held -= at->second.counted;
      late.push_back(at);
    }
    if (held > others_max) return false;
    for (const Connections::iterator at : late) {
      Refused(HttpRefusal::kAnswers, at->second.peer,
              absl::StrCat("its answer of ", at->second.counted,
                           " bytes is not taken yet, and others wait for theirs"));
      Drop(at);
    }
    return true;
  }

  std::string RefusedAnswer(const Connection& one, size_t bytes) const {
    Refused(HttpRefusal::kAnswers, one.peer, absl::StrCat("its answer has ", bytes, " bytes"));
    return WrittenAnswer(TooManyAnswers(options_.answer_bytes_max), /*with_body=*/true);
  }

  void TakeAnswers() {
    eventfd_t ignored = 0;
    eventfd_read(wake_.get(), &ignored);
    std::vector<Answered> answers;
    {
      MutexLock lock(&mu_);
      answers.swap(answered_);
    }
    for (Answered& answer : answers) {
      sizes_.Note(answer.request, answer.bytes.size());
      const auto found = connections_.find(answer.id);
      if (found == connections_.end()) continue;  // it has not waited
      Count(found->second, 0);
      if (!MakeRoomForAnswer(answer.bytes.size()))
        answer.bytes = RefusedAnswer(found->second, answer.bytes.size());
      BeginAnswer(found->second, std::move(answer.bytes));
      Go(found);
    }
  }

  // The threads that run handlers.
  void AnswerAll(bool urgent_only) {
    std::optional<RequestQueue::Asked> asked;
    while ((asked = queue_.Next(urgent_only)).has_value()) {
      const HttpResponse response = Answer(asked->request.path, asked->request.query);
      std::string bytes = WrittenAnswer(response, asked->request.method != "HEAD");
      queue_.Done(asked->request.path);
      {
        MutexLock lock(&mu_);
        answered_.push_back({asked->id, std::move(asked->request), std::move(bytes)});
      }
      eventfd_write(wake_.get(), 1);
    }
  }

  HttpResponse Answer(const std::string& path, const std::string& query) const {
    const auto handler = handlers_.find(path);
    if (handler != handlers_.end()) return handler->second(query);
    HttpResponse response;
    response.status = 404;
    response.body = absl::StrCat(
        "404: nothing at this path; there is ",
        absl::StrJoin(handlers_, ", ",
                      [](std::string* out, const auto& entry) { out->append(entry.first); }),
        "\n");
    return response;
  }

  // Constant after Run.
  Clock& clock_ = Clock::Real();
  const HttpServerOptions options_;
  const std::map<std::string, HttpHandler> handlers_;
  const size_t connections_max_;
  const ListeningSockets listening_;
  OwnedFd epoll_, wake_;
  std::thread thread_;
  std::vector<std::thread> threads_;

  // Thread-safe by itself.
  RequestQueue queue_;

  // Touched by `http-accept` only.
  Connections connections_;
  std::map<std::string, size_t> held_;  // places, by PeerAddress::block; never 0
  HandshakeLimit limit_;
  AnswerSizes sizes_;
  size_t answers_held_ = 0;  // the sum of HttpConnection::counted
  uint64_t last_id_ = kFirstConnection;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::vector<Answered> answered_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

absl::StatusOr<std::unique_ptr<HttpServer>> StartAt(
    const HostPort& address, const HttpServerOptions& options,
    const std::map<std::string, HttpHandler>& handlers) {
  COORDD_ASSIGN_OR_RETURN(ListeningSockets listening, ListeningSockets::Open(address, "HTTP"));
  auto server = std::make_unique<EpollHttpServer>(std::move(listening), options, handlers);
  COORDD_RETURN_IF_ERROR(server->Run());
  return server;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::StartWith(
    const HttpServerOptions& options, const std::map<std::string, HttpHandler>& handlers) {
  const std::optional<PortRange>& ports = options.ports;
  if (options.address.port != 0 || !ports.has_value())
    return StartAt(options.address, options, handlers);
  for (int port = ports->first; port <= ports->last; ++port) {
    auto server = StartAt({options.address.host, static_cast<uint16_t>(port)}, options, handlers);
    if (server.ok()) return server;
  }
  return absl::UnavailableError(absl::StrCat("cannot listen for HTTP on ", options.address.host,
                                             ": all ", ports->size(), " ports of ",
                                             ports->ToString(), " are in use"));
}

}  // namespace coordd
