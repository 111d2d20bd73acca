// One thread talks: it accepts, reads requests and writes answers without ever waiting for one
// client. Whole requests are answered by a few others, which never see a socket.
#include "common/net/http_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>
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
#include "common/net/http_request.h"
#include "common/net/listening_sockets.h"

namespace coordd {
namespace {

constexpr int kHandlerThreads = 4;
constexpr int kEventsPerTurn = 64;
constexpr absl::Duration kRequestWithin = absl::Seconds(2);
// With what a handler takes: a state of 131,072 workers has some 50 MiB.
constexpr absl::Duration kAnswerWithin = absl::Seconds(10);
// However many come behind it: time to send a request that fits into a packet.
constexpr absl::Duration kUndisturbed = absl::Milliseconds(100);
constexpr absl::Duration kCloseWithin = absl::Seconds(1);  // after the answer
// When nobody can be accepted: descriptors have run out, or all who are there have just come.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(10);

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

// What a browser may do with an answer: a page has its scripts and styles in itself, asks its own
// server and nobody else, and stands in nobody's frame.
constexpr absl::string_view kPolicy =
    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

std::string Written(const HttpResponse& response, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
                      "\r\nContent-Type: ", response.content_type,
                      "\r\nContent-Length: ", response.body.size(), "\r\n", kPolicy,
                      response.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                      response.status == 405 ? "Allow: GET, HEAD\r\n" : "",
                      "Connection: close\r\n\r\n", with_body ? response.body : "");
}

struct Asked {
  uint64_t id = 0;
  HttpRequest request;
};
struct Answered {
  uint64_t id = 0;
  std::string bytes;
};

class EpollHttpServer final : public HttpServer {
 public:
  EpollHttpServer(ListeningSockets listening, const HttpServerOptions& options,
                  std::map<std::string, HttpHandler> handlers)
      : options_(options),
        handlers_(std::move(handlers)),
        connections_max_(std::max<size_t>(options.connections_max, 1)),
        listening_(std::move(listening)) {}

  ~EpollHttpServer() override {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mu_);
      stopping_ = true;
    }
    asked_some_.NotifyAll();
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
    for (std::thread& thread : threads_)
      thread = StartThread("metrics-http", [this] { AnswerAll(); });
    return absl::OkStatus();
  }

  HostPort address() const override { return listening_.address(); }

 private:
  struct Connection {
    enum class State { kBeginning, kReading, kHandling, kWriting, kClosing };
    OwnedFd fd;
    std::unique_ptr<ClientStream> stream;
    State state = State::kBeginning;
    absl::Time since;
    absl::Time deadline;
    std::string bytes = "";  // received, then to be written
    size_t written = 0;
    bool widened = false;  // the kernel was asked to take more
  };
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
      std::erase_if(connections_, [now](const auto& one) { return one.second.deadline <= now; });
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
    for (size_t i = 0; i < connections_max_; ++i) {
      if (connections_.size() >= connections_max_ && !MakeRoom()) return Pause();
      OwnedFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        const bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
        if (exhausted && !MakeRoom()) Pause();
        return;
      }
      const uint64_t id = ++last_id_;
      Await(fd.get(), id, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, EPOLL_CTL_ADD);
      const absl::Time now = clock_.Now();
      const int number = fd.get();
      Connection one = {
          .fd = std::move(fd),
          .stream = options_.stream == nullptr ? PlainStream(number) : options_.stream(number),
          .since = now,
          .deadline = now + kRequestWithin};
      if (one.stream != nullptr) connections_.emplace(id, std::move(one));
    }
  }

  // The port stays readable, so its next look is after this, or at the end.
  void Pause() const {
    pollfd end = {wake_.get(), POLLIN, 0};
    poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kAcceptPause)));
  }

  // Ends the oldest connection that waits for its client: one that has been answered, else one
  // whose request is awaited, else one that does not take its answer.
  bool MakeRoom() {
    using State = Connection::State;
    const absl::Time now = clock_.Now();
    struct Kind {
      State state = State::kClosing;
      absl::Duration undisturbed;
    };
    for (const Kind& kind :
         {Kind{State::kClosing, absl::ZeroDuration()}, Kind{State::kBeginning, kUndisturbed},
          Kind{State::kReading, kUndisturbed}, Kind{State::kWriting, kUndisturbed}}) {
      const auto oldest = std::find_if(connections_.begin(), connections_.end(), [&](auto& one) {
        return one.second.state == kind.state && one.second.since + kind.undisturbed <= now;
      });
      if (oldest == connections_.end()) continue;
      connections_.erase(oldest);
      return true;
    }
    return false;
  }

  // Does what can be done without waiting.
  void Go(Connections::iterator at) {
    Connection& one = at->second;
    if (one.state == Connection::State::kBeginning) Begin(one);
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
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) connections_.erase(at);
  }

  // epoll tells of each change, to read or to write, so what is awaited need not be told.
  static bool IsAwaited(ClientStream::Outcome outcome) {
    return outcome == ClientStream::Outcome::kWantsRead ||
           outcome == ClientStream::Outcome::kWantsWrite;
  }

  static void Begin(Connection& one) {
    const ClientStream::Outcome outcome = one.stream->Begin();
    if (IsAwaited(outcome)) return;
    const bool begun = outcome == ClientStream::Outcome::kDone;
    one.state = begun ? Connection::State::kReading : Connection::State::kClosing;
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
        return BeginAnswer(one, Written(*refused, request->method != "HEAD"));
      one.state = Connection::State::kHandling;
      one.deadline = clock_.Now() + kAnswerWithin;
      {
        MutexLock lock(&mu_);
        asked_.push_back({id, *std::move(request)});  // at most one of each connection
      }
      asked_some_.NotifyOne();
      return;
    }
    BeginAnswer(one,
                Written({.status = 431, .body = "431: a request has at most 16384 bytes here\n"},
                        /*with_body=*/true));
  }

  // What needs no handler.
  std::optional<HttpResponse> Refuse(const Connection& one, const HttpRequest& request) const {
    if (request.method.empty())
      return HttpResponse{.status = 400, .body = "400: expected a request of HTTP/1.1\n"};
    if (listening_.loopback() && request.host.has_value() &&
        NamesAnotherHost(*request.host, listening_.address().host)) {
      return HttpResponse{
          .status = 421,
          .body = absl::StrCat("421: found Host: ", PrintableText(request.host->substr(0, 300)),
                               ", expected localhost or 127.0.0.1: this listens on loopback\n")};
    }
    if (request.method != "GET" && request.method != "HEAD")
      return HttpResponse{.status = 405, .body = "405: only GET and HEAD are served here\n"};
    const absl::Status may =
        options_.may_ask == nullptr ? absl::OkStatus() : options_.may_ask(*one.stream, request);
    if (!may.ok())
      return HttpResponse{.status = 401, .body = absl::StrCat("401: ", may.message(), "\n")};
    return std::nullopt;
  }

  void BeginAnswer(Connection& one, std::string bytes) {
    one.bytes = std::move(bytes);
    one.state = Connection::State::kWriting;
    one.deadline = clock_.Now() + kAnswerWithin;
    Write(one);
  }

  void Write(Connection& one) {
    while (one.written < one.bytes.size()) {
      const ClientStream::Moved sent =
          one.stream->Write(absl::string_view(one.bytes).substr(one.written));
      if (IsAwaited(sent.outcome) && !one.widened) {
        WidenFor(one);
        continue;
      }
      if (IsAwaited(sent.outcome)) return;
      if (sent.outcome != ClientStream::Outcome::kDone) break;
      one.written += sent.bytes;
    }
    if (one.written == one.bytes.size()) one.stream->End();
    one.bytes = std::string();
    shutdown(one.fd.get(), SHUT_WR);
    one.state = Connection::State::kClosing;
    one.deadline = clock_.Now() + kCloseWithin;
  }

  // Lets the kernel have the rest, so that a reader, however slow, is no longer ours to wait for;
  // as far as the system allows (net.core.wmem_max, 208 KiB as a rule).
  static void WidenFor(Connection& one) {
    one.widened = true;
    constexpr size_t kMost = 1 << 20;
    const int bytes = static_cast<int>(std::min(one.bytes.size(), kMost));
    int has = 0;
    socklen_t size = sizeof(has);
    const bool known = getsockopt(one.fd.get(), SOL_SOCKET, SO_SNDBUF, &has, &size) == 0;
    if (known && has / 2 < bytes)
      setsockopt(one.fd.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
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
      const auto found = connections_.find(answer.id);
      if (found == connections_.end()) continue;  // it has not waited
      BeginAnswer(found->second, std::move(answer.bytes));
      Go(found);
    }
  }

  // The threads that run handlers.
  void AnswerAll() {
    std::optional<Asked> asked;
    while ((asked = Next()).has_value()) {
      const HttpResponse response = Answer(asked->request.path, asked->request.query);
      std::string bytes = Written(response, asked->request.method != "HEAD");
      {
        MutexLock lock(&mu_);
        answered_.push_back({asked->id, std::move(bytes)});
      }
      eventfd_write(wake_.get(), 1);
    }
  }

  // nullopt: the server ends.
  std::optional<Asked> Next() {
    MutexLock lock(&mu_);
    while (asked_.empty() && !stopping_) asked_some_.Wait(&mu_);
    if (stopping_) return std::nullopt;
    Asked next = std::move(asked_.front());
    asked_.pop_front();
    return next;
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
  std::array<std::thread, kHandlerThreads> threads_;

  // Touched by `http-accept` only.
  Connections connections_;
  uint64_t last_id_ = kFirstConnection;

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar asked_some_;
  std::deque<Asked> asked_ ABSL_GUARDED_BY(mu_);
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
