#include "server/door/flood_guard.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/memory_limit.h"
#include "common/base/thread.h"
#include "server/door/channelz_sockets.h"
#include "server/door/read_bytes.h"
#include "server/door/socket_progress.h"

namespace coordd {
namespace {

// Between two looks at the memory, which cost microseconds. A client on the same machine sends some
// 50 MiB meanwhile.
constexpr absl::Duration kEvery = absl::Milliseconds(50);
constexpr absl::Duration kForgetEvery = absl::Seconds(30);

}  // namespace

FloodGuard::FloodGuard(ReadBytes& read, const FloodBounds& bounds, Clock& clock, Calls calls)
    : read_(read),
      clock_(clock),
      calls_(std::move(calls)),
      messages_watch_(bounds.messages),
      calls_watch_(bounds.calls) {
  thread_ = StartThread("flood", [this] { Run(); });
}

FloodGuard::~FloodGuard() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void FloodGuard::Run() {
  absl::Time forget = clock_.Now() + kForgetEvery;
  while (true) {
    {
      MutexLock lock(&mu_);
      clock_.Await(
          &mu_, &changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; },
          clock_.Now() + kEvery);
      if (stopping_) return;
    }
    const uint64_t resident = ResidentBytes();
    if (messages_watch_.IsLookDue(resident)) LookAtMessages();
    if (calls_watch_.IsLookDue(resident)) LookAtCalls();
    if (clock_.Now() < forget) continue;
    forget = clock_.Now() + kForgetEvery;
    ForgetGone();
  }
}

std::vector<Backlog> FloodGuard::Open() const {
  std::vector<Backlog> all = calls_.connections();
  // What was ended is closed, and its memory free, once gRPC has come to it.
  std::erase_if(all, [this](const Backlog& one) { return ended_.contains(one.cookie); });
  return all;
}

void FloodGuard::LookAtMessages() {
  std::vector<Backlog> all = Open();
  for (Backlog& one : all) {
    // In this order: what is read in between counts for the client.
    const uint64_t taken = BytesTaken(one.fd);
    const uint64_t whole = read_.Total(one.grpc_peer);
    one.bytes = SocketCookie(one.fd) == one.cookie && taken > whole ? taken - whole : 0;
  }
  for (const Backlog& one : messages_watch_.WhoEnds(std::move(all)))
    End(one, absl::StrCat("it has sent ", one.bytes >> 20, " MiB of messages that do not end"));
}

void FloodGuard::LookAtCalls() {
  const absl::flat_hash_map<std::string, uint64_t> calls = CallsUnderWay();
  std::vector<Backlog> all = Open();
  for (Backlog& one : all) {
    const auto found = calls.find(one.grpc_peer);
    one.bytes = found == calls.end() ? 0 : found->second * kCallCosts;
  }
  for (const Backlog& one : calls_watch_.WhoEnds(std::move(all)))
    End(one, absl::StrCat("it has ", one.bytes / kCallCosts, " calls under way"));
}

void FloodGuard::End(const Backlog& one, const std::string& why) {
  EndConnection(one.fd, one.cookie);
  ended_.insert(one.cookie);
  calls_.ended();
  if (const auto more = limit_.Pass(clock_.Now()); more.has_value()) {
    COORDD_LOG(kWarning, "a connection of ", one.peer, " was ended: ", why,
               ", more than any other, and together they are more than this process may keep",
               *more);
  }
}

void FloodGuard::ForgetGone() {
  absl::flat_hash_set<std::string> open;
  absl::flat_hash_set<uint64_t> ended;
  for (Backlog& one : calls_.connections()) {
    if (ended_.contains(one.cookie)) ended.insert(one.cookie);
    open.insert(std::move(one.grpc_peer));
  }
  ended_ = std::move(ended);
  read_.Keep(open);
}

}  // namespace coordd
