#include "server/door/connection_guard.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grpc/grpc_log.h"
#include "common/grpc/server_certificates.h"
#include "server/door/caller.h"
#include "server/door/connection_table.h"
#include "server/door/socket_progress.h"

namespace coordd {
namespace {

constexpr absl::Duration kHandshakeWithin = absl::Seconds(5);
// Of one connection too many, from its handshake on: long enough for a call to be answered.
constexpr absl::Duration kRefuseWithin = absl::Milliseconds(2500);
// Of those whom Refuse tells why, at a time: each takes a place, so they are few of all, too.
constexpr size_t kMaxTold = 16, kPlacesPerTold = 16;
constexpr size_t kMaxThreads = 4;
// Below it their own descriptors would be a part of all that counts.
constexpr size_t kFewDescriptors = 512;
constexpr int kNameBytes = 16;  // 128 bits: nobody guesses one, and none is there twice

// Ours and gRPC's end. gRPC calls its other side by the name that ours is bound to, in Linux's
// abstract namespace; nobody can connect to it, since it does not listen.
struct Pair {
  OwnedFd ours, grpc;
  std::string grpc_peer;
};
std::optional<Pair> MakePair() {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
    return std::nullopt;
  Pair pair = {OwnedFd(ends[0]), OwnedFd(ends[1]), ""};
  const std::string name = absl::StrCat("coordd-", SecretHex(kNameBytes));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(pair.ours.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
    return std::nullopt;
  pair.grpc_peer = absl::StrCat("unix-abstract:", name);
  return pair;
}

// Who somebody is, for people: beside the address, what the certificate says.
std::string WhoIs(const GuardedConnection& connection) {
  if (connection.tls() == nullptr) return connection.peer();
  const auto caller = MakeCaller(connection.peer(), connection.tls());
  return absl::StrCat(connection.peer(), " (",
                      caller.ok() ? ToString((*caller)->identity) : "of a doubtful certificate",
                      ")");
}

// Whose connections have one budget: those of a certificate's name, and of an address where there
// is none.
std::string KnownAs(const GuardedConnection& connection,
                    const absl::StatusOr<std::shared_ptr<const Caller>>& caller) {
  if (connection.tls() != nullptr && caller.ok()) return ToString((*caller)->identity);
  return connection.peer().substr(0, connection.peer().rfind(':'));
}

}  // namespace

ConnectionGuard::ConnectionGuard(ServerCertificates* certificates, ConnectionTable& connections,
                                 const Sizes& sizes, Clock& clock)
    : certificates_(certificates),
      connections_(connections),
      threads_(sizes.threads),
      clock_(clock),
      places_(sizes.places) {}

size_t ConnectionGuard::ThreadsFor(size_t descriptors_max) {
  if (descriptors_max < kFewDescriptors) return 1;
  return std::clamp<size_t>(std::thread::hardware_concurrency() / 4, 1, kMaxThreads);
}

size_t ConnectionGuard::DescriptorsOf(size_t threads, bool tls) {
  return threads * GuardThread::kDescriptors * (tls ? 2 : 1);
}

absl::Status ConnectionGuard::Start(Calls calls, absl::Status full) {
  calls_ = std::move(calls);
  full_ = std::move(full);
  const GuardThread::Calls how = {
      .begun = [this](GuardThread::Owned one) { Begun(std::move(one)); },
      .ended = [this](const GuardedConnection& one) { Ended(one); }};
  for (size_t i = 0; i < threads_; ++i) {
    serving_.push_back(std::make_unique<GuardThread>(absl::StrCat("guard-", i), how, clock_));
    COORDD_RETURN_IF_ERROR(serving_.back()->Start());
    if (certificates_ == nullptr) continue;
    beginning_.push_back(std::make_unique<GuardThread>(absl::StrCat("hello-", i), how, clock_));
    COORDD_RETURN_IF_ERROR(beginning_.back()->Start());
  }
  return absl::OkStatus();
}

void ConnectionGuard::StopLettingIn() {
  stopping_.store(true, std::memory_order_relaxed);
  for (const auto& thread : beginning_) thread->Stop(absl::ZeroDuration());
}

void ConnectionGuard::Stop(absl::Duration grace) {
  StopLettingIn();
  for (const auto& thread : serving_) thread->Stop(grace);
}

void ConnectionGuard::LetIn(OwnedFd fd, const std::string& peer) {
  Enter(std::move(fd), peer, /*to_refuse=*/false);
}

void ConnectionGuard::LetInToRefuse(OwnedFd fd, const std::string& peer) {
  Enter(std::move(fd), peer, /*to_refuse=*/true);
}

void ConnectionGuard::Enter(OwnedFd fd, const std::string& peer, bool to_refuse) {
  const int number = fd.get(), on = 1;
  setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::unique_ptr<TlsStream> tls;
  if (certificates_ != nullptr) {
    tls = TlsStream::Over(number, certificates_->context().get(), /*wants_protocol=*/true);
    if (tls == nullptr) return;
  }
  const bool has_tls = tls != nullptr;
  auto connection = std::make_unique<GuardedConnection>(
      std::move(fd), SocketCookie(number), peer, std::move(tls), clock_.Now() + kHandshakeWithin);
  if (to_refuse) connection->set_to_refuse();
  if (has_tls) {
    Idlest(beginning_).Take(std::move(connection));
  } else {
    Begun(std::move(connection));
  }
}

void ConnectionGuard::Begun(GuardThread::Owned connection) {
  if (connection->tls() != nullptr) calls_.finished(connection->client_fd(), connection->cookie());
  if (!connection->is_to_refuse()) {
    Serve(std::move(connection));
    return;
  }
  connection->RefuseBy(full_, clock_.Now() + kRefuseWithin);
  Idlest(serving_).Take(std::move(connection));
}

void ConnectionGuard::Serve(GuardThread::Owned connection) {
  const auto caller = MakeCaller(connection->peer(), connection->tls());
  if (!caller.ok()) {
    Refuse(std::move(connection), Refusal::kCertificate, caller.status());
    return;
  }
  NamePlaces::Place place;
  const Identity& who = (*caller)->identity;
  size_t of_name = 0;
  if (connection->tls() != nullptr && who.role != Role::kOperator &&
      !places_.Take(ToString(who), &place, &of_name)) {
    Refuse(std::move(connection), Refusal::kName,
           absl::UnavailableError(absl::StrCat(
               ToString(who), " has ", of_name, " of the ", places_.places_max(),
               " connections that coordd takes: the others are kept for other names")));
    return;
  }
  std::optional<Pair> pair = MakePair();
  if (!pair.has_value()) {
    Refused(Refusal::kDescriptor,
            absl::StrCat("a connection of ", connection->peer(),
                         " was closed: no pair of sockets can be had: ", std::strerror(errno)));
    return;
  }
  const absl::Time now = clock_.Now();
  auto calls = budgets_.Of(KnownAs(*connection, caller), now);
  connections_.Add(pair->grpc_peer, {.fd = connection->client_fd(),
                                     .cookie = connection->cookie(),
                                     .peer = connection->peer(),
                                     .caller = caller});
  connection->ServeBy(std::move(pair->ours), pair->grpc_peer, std::move(calls), std::move(place),
                      now);
  Idlest(serving_).Take(std::move(connection));
  calls_.serve(pair->grpc.Release());
}

void ConnectionGuard::Refuse(GuardThread::Owned connection, Refusal why,
                             const absl::Status& status) {
  Refused(why, absl::StrCat("a connection of ", WhoIs(*connection),
                            " was refused: ", PrintableText(status.message())));
  const size_t most = std::clamp(places_.places_max() / kPlacesPerTold, size_t{1}, kMaxTold);
  if (told_.fetch_add(1, std::memory_order_relaxed) >= most) {
    told_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  // As HTTP/2 may have it as it is; a name in a certificate may be anything.
  std::string text(status.message());
  for (char& c : text)
    if (!absl::ascii_isprint(static_cast<unsigned char>(c)) || c == '%') c = '?';
  connection->RefuseBy(absl::Status(status.code(), text), clock_.Now() + kRefuseWithin);
  Idlest(serving_).Take(std::move(connection));
}

void ConnectionGuard::Ended(const GuardedConnection& connection) {
  if (connection.serves()) connections_.Remove(connection.grpc_peer());
  if (connection.refuses() && !connection.is_to_refuse())
    told_.fetch_sub(1, std::memory_order_relaxed);
  if (!connection.violation().ok()) {
    Refused(Refusal::kFrames,
            absl::StrCat("a connection of ", WhoIs(connection), " was closed: it has sent ",
                         connection.violation().message()));
  }
  const std::string reason = connection.GrpcsReason();
  if (!reason.empty() && !stopping_.load(std::memory_order_relaxed)) {
    Refused(Refusal::kGrpc, absl::StrCat("a connection of ", WhoIs(connection),
                                         " was closed by gRPC, which gives ", reason));
  }
  if (connection.serves() || connection.refuses() || connection.stream().failure().empty()) return;
  Refused(Refusal::kHandshake,
          absl::StrCat("a TLS handshake of ", connection.peer(),
                       " was refused: ", HandshakeFailureText(connection.stream().failure())));
}

GuardThread& ConnectionGuard::Idlest(
    const std::vector<std::unique_ptr<GuardThread>>& threads) const {
  return **std::min_element(threads.begin(), threads.end(),
                            [](const auto& a, const auto& b) { return a->size() < b->size(); });
}

void ConnectionGuard::Refused(Refusal why, const std::string& text) {
  calls_.refused(why);
  std::optional<std::string> more;
  {
    MutexLock lock(&mu_);
    more = limits_[why].Pass(clock_.Now());
  }
  if (more.has_value()) COORDD_LOG(kWarning, text, *more);
}

}  // namespace coordd
