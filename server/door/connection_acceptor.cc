// A connection is looked at (MSG_PEEK) until its first bytes say what it is, and only then handed
// on. After that its descriptor is others' to close; whether it still is the connection that was
// let in tells the kernel's cookie of the socket.
#include "server/door/connection_acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "server/door/socket_progress.h"

namespace coordd {
namespace {

constexpr int kAcceptsPerTurn = 64;  // between two looks at those who have spoken
constexpr int kEventsPerTurn = 64;
// After accept has failed for want of memory, or of descriptors of the whole machine.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(10);
// A look at all that are open costs a system call for each: a tenth of the time at most.
constexpr absl::Duration kSweepPause = absl::Milliseconds(5);
constexpr int kSweepShare = 10;
// gRPC sets it for listeners of its own, from its keepalive timeout.
constexpr int kUserTimeoutMs = 5000;
// How soon those in line for room are looked at again.
constexpr absl::Duration kLinePause = absl::Milliseconds(2);

std::pair<std::string, uint16_t> PeerOf(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return {std::string(absl::StripPrefix(text, "::ffff:")), ntohs(v6.sin6_port)};
}

// What fits at once: some hundred bytes into an empty buffer.
void SendOnce(int fd, const std::string& bytes) {
  [[maybe_unused]] const ssize_t sent =
      send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

ConnectionAcceptor::ConnectionAcceptor(ListeningSockets listening,
                                       const ConnectionGateOptions& options, Clock& clock)
    : options_(options), clock_(clock), listening_(std::move(listening)), gate_(options) {}

absl::Status ConnectionAcceptor::Start(Calls calls) {
  calls_ = std::move(calls);
  epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  reserve_ = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!epoll_.valid() || !wake_.valid() || !reserve_.valid()) {
    return absl::UnavailableError(
        absl::StrCat("connections cannot be awaited: ", std::strerror(errno)));
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = wake_.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  for (const OwnedFd& listener : listening_.sockets()) {
    SetUserTimeout(listener.get(), kUserTimeoutMs);
    event.data.fd = listener.get();
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener.get(), &event);
  }
  thread_ = StartThread("accept", [this] { Run(); });
  return absl::OkStatus();
}

void ConnectionAcceptor::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
  waiting_.clear();
  listening_ = ListeningSockets();
}

void ConnectionAcceptor::Finished(int fd, uint64_t cookie) {
  MutexLock lock(&mu_);
  const auto found = handed_.find(fd);
  if (found != handed_.end() && found->second.cookie == cookie) gate_.Finished(fd);
}

size_t ConnectionAcceptor::connections() {
  MutexLock lock(&mu_);
  SweepLocked();
  return gate_.open();
}

absl::Status ConnectionAcceptor::Room() {
  MutexLock lock(&mu_);
  if (gate_.full()) SweepLocked();
  return gate_.full() ? absl::UnavailableError(FullText()) : absl::OkStatus();
}

std::string ConnectionAcceptor::FullText() const {
  return absl::StrCat("coordd takes no more connections: all ", options_.connections_max,
                      " that its limit of descriptors leaves are open; raise that limit (ulimit "
                      "-Hn, LimitNOFILE= of systemd) or let the workers of a node share one "
                      "(--node-sessions)");
}

void ConnectionAcceptor::Run() {
  epoll_event events[kEventsPerTurn];
  while (true) {
    const int ready = epoll_wait(epoll_.get(), events, kEventsPerTurn, PollTimeout(clock_.Now()));
    const absl::Time now = clock_.Now();
    for (int i = 0; i < ready; ++i) {
      const int fd = events[i].data.fd;
      if (fd == wake_.get()) {
        eventfd_t ignored = 0;
        eventfd_read(fd, &ignored);
      } else if (waiting_.contains(fd)) {
        Look(fd);
      } else {
        const auto& listeners = listening_.sockets();
        const bool listens = std::any_of(listeners.begin(), listeners.end(),
                                         [fd](const OwnedFd& one) { return one.get() == fd; });
        if (listens) AcceptAll(fd);
      }
    }
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
    }
    CloseOverdue(now);
    LetInLine(clock_.Now());
  }
}

int ConnectionAcceptor::PollTimeout(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  {
    MutexLock lock(&mu_);
    next = std::min(next, gate_.NextDeadline());
    if (gate_.has_line()) next = std::min(next, now + kLinePause);
  }
  if (next == absl::InfiniteFuture()) return -1;
  const absl::Duration wait = absl::Ceil(next - now, absl::Milliseconds(1));
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(wait), 0, 60000));
}

void ConnectionAcceptor::AcceptAll(int listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    OwnedFd fd(
        accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      const auto [host, port] = PeerOf(peer);
      Accepted(std::move(fd), host, port);
      continue;
    }
    const int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM)
      AcceptWithoutDescriptors(listener);
    // Of the connection rather than of us: the next one may be better.
    if (error == ECONNABORTED || error == EINTR || error == EPROTO || error == EPERM) continue;
    return;
  }
}

// They have been miscounted, or something else of this process has taken more than its share: one
// is told the end of its connection, and one that waits makes room.
void ConnectionAcceptor::AcceptWithoutDescriptors(int listener) {
  Refused(Refusal::kDescriptor, "a connection was closed at once: this process has no descriptors");
  reserve_.Close();
  OwnedFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)).Close();
  if (!waiting_.empty()) Close(waiting_.begin()->first);
  reserve_ = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (reserve_.valid()) return;
  // The port stays readable, so its next look is after this, or at the end.
  pollfd end = {wake_.get(), POLLIN, 0};
  poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kAcceptPause)));
}

void ConnectionAcceptor::Accepted(OwnedFd fd, const std::string& host, uint16_t port) {
  const int number = fd.get();
  const absl::Time now = clock_.Now();
  int evicted = -1;
  {
    MutexLock lock(&mu_);
    handed_.erase(number);
    evicted = gate_.Arrived(number, host, now);
    if (gate_.full()) SweepLocked();
  }
  Waiting& waiting = waiting_[number];
  waiting.fd = std::move(fd);
  waiting.peer = HostPort{host, port}.ToString();
  if (evicted >= 0) {
    const auto found = waiting_.find(evicted);
    if (found->second.opening != Opening::kUndecided) {
      RefuseInLine(found->second);
    } else if (!found->second.told) {
      Refused(Refusal::kSilent, absl::StrCat("a connection of ", found->second.peer,
                                             " was closed: it had said nothing, and others wait"));
    }
    waiting_.erase(found);
  }
  if (evicted == number) return;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.fd = number;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, number, &event);  // says so if there is something already
}

void ConnectionAcceptor::Look(int fd) {
  if (waiting_.at(fd).refusal.has_value() || waiting_.at(fd).told) {
    ContinueTelling(fd);
    return;
  }
  char bytes[kOpeningBytes];
  const ssize_t got = recv(fd, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  int unread = 0;
  if (got <= 0 || ioctl(fd, FIONREAD, &unread) != 0) {
    Close(fd);
    return;
  }
  const auto size = static_cast<size_t>(got);
  Waiting& waiting = waiting_.at(fd);
  waiting.opening = OpeningOf({bytes, size}, std::max(size, static_cast<size_t>(unread)));
  if (waiting.opening != Opening::kOther && HasEnded(fd)) {
    Close(fd);
    return;
  }
  Decide(fd);
}

void ConnectionAcceptor::Decide(int fd) {
  const Opening opening = waiting_.at(fd).opening;
  ConnectionGate::Verdict verdict;
  {
    MutexLock lock(&mu_);
    verdict = gate_.Opened(fd, opening);
  }
  using Do = ConnectionGate::Verdict::Do;
  if (verdict.what == Do::kLetIn) LetIn(fd, /*to_refuse=*/false);
  if (verdict.what == Do::kTell) Tell(fd, opening, verdict.why);
}

void ConnectionAcceptor::LetIn(int fd, bool to_refuse) {
  const auto found = waiting_.find(fd);
  const uint64_t cookie = SocketCookie(fd);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  {
    MutexLock lock(&mu_);
    if (to_refuse) {
      gate_.LetInToRefuse(fd);
    } else {
      gate_.LetIn(fd);
    }
    handed_[fd] = {cookie, found->second.peer, BytesReceived(fd), clock_.Now()};
  }
  Waiting one = std::move(found->second);
  waiting_.erase(found);
  (to_refuse ? calls_.let_in_to_refuse : calls_.let_in)(std::move(one.fd), one.peer);
}

void ConnectionAcceptor::Tell(int fd, Opening opening, Refusal why) {
  Waiting& waiting = waiting_.at(fd);
  std::string text;
  absl::Status status;
  switch (why) {
    case Refusal::kPlaintext:
      text = "it speaks no TLS, which is wanted here";
      status = absl::FailedPreconditionError(
          "this coordd wants TLS: give --tls-ca, --tls-cert and --tls-key, or COORDD_TLS_CA, "
          "COORDD_TLS_CERT and COORDD_TLS_KEY");
      break;
    case Refusal::kTls:
      text = "it speaks TLS, and this coordd was started without (--tls-cert)";
      break;
    case Refusal::kNotHttp2:
      text = "it speaks neither HTTP/2 nor TLS, so it is no client of coordd's";
      break;
    case Refusal::kAddress:
      text = absl::StrCat("all ", options_.connections_per_address_max,
                          " connections that one address may have are open");
      status = absl::UnavailableError(absl::StrCat("coordd refuses this connection: ", text));
      break;
    default:
      text = FullText();
      status = absl::UnavailableError(text);
  }
  Refused(why, absl::StrCat("a connection of ", waiting.peer, " was refused: ", text));
  if (opening == Opening::kHttp2) {
    waiting.refusal.emplace(status);
    ContinueTelling(fd);
    return;
  }
  if (opening == Opening::kTls && !status.ok() && calls_.let_in_to_refuse != nullptr) {
    bool room = false;
    {
      MutexLock lock(&mu_);
      room = gate_.RoomToRefuse();
    }
    if (room) {
      LetIn(fd, /*to_refuse=*/true);
      return;
    }
  }
  char first = 0;
  [[maybe_unused]] const ssize_t got = recv(fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (opening == Opening::kTls) SendOnce(fd, status.ok() ? TlsRefusal() : TlsFullRefusal());
  if (opening == Opening::kOther && absl::ascii_isupper(static_cast<unsigned char>(first)))
    SendOnce(fd, Http1Refusal("this is coordd's port for workers and tools, which speak gRPC; its "
                              "status page is at the port of --http"));
  shutdown(fd, SHUT_WR);
  waiting.told = true;
  ContinueTelling(fd);
}

// Reads what comes, so that the end of the connection does not overtake what was said.
void ConnectionAcceptor::ContinueTelling(int fd) {
  Waiting& waiting = waiting_.at(fd);
  char bytes[4096];
  size_t taken = 0;
  constexpr size_t kMaxTaken = 64 << 10;  // in one turn, and in all: nothing to say takes more
  while (taken < kMaxTaken) {
    const ssize_t got = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) break;
    taken += static_cast<size_t>(got);
    if (waiting.told) continue;
    SendOnce(fd, waiting.refusal->Take({bytes, static_cast<size_t>(got)}));
    // The client closes, once it has read everything: an end of ours could overtake the status of a
    // call on which it is still sending.
    waiting.told = waiting.refusal->done();
  }
  Close(fd);
}

void ConnectionAcceptor::Close(int fd) {
  waiting_.erase(fd);
  MutexLock lock(&mu_);
  gate_.Gone(fd);
}

void ConnectionAcceptor::CloseOverdue(absl::Time now) {
  std::vector<int> overdue;
  {
    MutexLock lock(&mu_);
    overdue = gate_.TakeOverdue(now);
  }
  for (int fd : overdue) {
    const auto found = waiting_.find(fd);
    if (found->second.opening != Opening::kUndecided)
      RefuseInLine(found->second);
    else
      Refused(Refusal::kSilent,
              absl::StrCat("a connection of ", found->second.peer, " was closed: it has not begun ",
                           options_.tls ? "TLS" : "HTTP/2", " within ",
                           absl::FormatDuration(options_.opening_within)));
    waiting_.erase(found);
  }
}

void ConnectionAcceptor::Refused(Refusal why, const std::string& text) {
  calls_.refused(why);
  if (const auto more = limits_[why].Pass(clock_.Now()); more.has_value())
    COORDD_LOG(kWarning, text, *more);
}

void ConnectionAcceptor::SweepLocked() {
  const absl::Time begin = clock_.Now();
  if (begin < sweep_after_) return;
  for (auto it = handed_.begin(); it != handed_.end();) {
    const auto one = it++;
    if (SocketCookie(one->first) == one->second.cookie) continue;
    gate_.Gone(one->first);
    handed_.erase(one);
  }
  const absl::Time end = clock_.Now();
  sweep_after_ = end + std::max(kSweepPause, kSweepShare * (end - begin));
}

}  // namespace coordd
