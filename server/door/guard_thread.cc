// epoll knows connections by a number that is used once, so that what it still tells of one that is
// gone finds nobody.
#include "server/door/guard_thread.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/thread.h"

namespace coordd {
namespace {

constexpr int kReadyPerTurn = 64;
// How late who has no time left may be ended.
constexpr int kTickMs = 100;
// What epoll knows a socket by: the connection's number, and which of its two it is.
constexpr uint64_t kOfGrpc = 1;
uint64_t MarkOf(uint64_t id, bool of_grpc) { return id << 1 | (of_grpc ? kOfGrpc : 0); }
constexpr uint64_t kWakeMark = 0;  // numbers begin with 1

}  // namespace

GuardThread::GuardThread(std::string name, Calls calls, Clock& clock)
    : name_(std::move(name)), calls_(std::move(calls)), clock_(clock) {}

absl::Status GuardThread::Start() {
  epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid())
    return absl::UnavailableError(
        absl::StrCat("connections cannot be served: ", std::strerror(errno)));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWakeMark;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  piece_ = std::make_unique<GuardedConnection::Piece>();
  thread_ = StartThread(name_, [this] { Run(); });
  return absl::OkStatus();
}

void GuardThread::Take(Owned connection) {
  size_.fetch_add(1, std::memory_order_relaxed);
  {
    MutexLock lock(&mu_);
    new_.push_back(std::move(connection));
  }
  eventfd_write(wake_.get(), 1);
}

void GuardThread::Stop(absl::Duration grace) {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    stop_by_ = clock_.Now() + grace;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void GuardThread::Run() {
  epoll_event events[kReadyPerTurn];
  while (true) {
    const int ready = epoll_wait(epoll_.get(), events, kReadyPerTurn, PollTimeout());
    now_ = clock_.Now();
    for (int i = 0; i < ready; ++i) OnEvent(events[i].data.u64, events[i].events);
    for (const uint64_t id : std::exchange(more_, {})) Serve(id, {});
    EndOverdue();
    if (IsOver()) break;
  }
  while (!places_.empty()) End(places_.begin()->first);
}

int GuardThread::PollTimeout() const {
  if (!more_.empty()) return 0;
  return timed_.empty() ? -1 : kTickMs;
}

bool GuardThread::IsOver() {
  MutexLock lock(&mu_);
  if (!stopping_) return false;
  if (now_ >= stop_by_ || (places_.empty() && new_.empty())) return true;
  timed_.insert(0);  // so that it is looked again
  return false;
}

void GuardThread::TakeNew() {
  eventfd_t ignored = 0;
  eventfd_read(wake_.get(), &ignored);
  std::vector<Owned> taken;
  {
    MutexLock lock(&mu_);
    taken = std::exchange(new_, {});
  }
  for (Owned& one : taken) {
    const uint64_t id = ++last_id_;
    Place& place = places_[id];
    place.connection = std::move(one);
    epoll_event event = {};
    event.data.u64 = MarkOf(id, /*of_grpc=*/false);
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, place.connection->client_fd(), &event);
    if (place.connection->has_more()) {
      Serve(id, {});
    } else {
      Settle(id);
    }
  }
}

void GuardThread::OnEvent(uint64_t mark, uint32_t events) {
  if (mark == kWakeMark) {
    TakeNew();
    return;
  }
  const bool of_grpc = (mark & kOfGrpc) != 0;
  Serve(mark >> 1, {.client = !of_grpc,
                    .grpc = of_grpc,
                    .client_gone = !of_grpc && (events & (EPOLLHUP | EPOLLERR)) != 0,
                    .grpc_gone = of_grpc && (events & (EPOLLRDHUP | EPOLLHUP)) != 0});
}

void GuardThread::Serve(uint64_t id, const GuardedConnection::Ready& ready) {
  const auto found = places_.find(id);
  if (found == places_.end()) return;
  GuardedConnection& one = *found->second.connection;
  if (one.serves() || one.refuses()) {
    one.Move(ready, *piece_, now_);
  } else if (one.Begin()) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, one.client_fd(), nullptr);
    Owned begun = std::move(found->second.connection);
    Leave(id);
    calls_.begun(std::move(begun));
    return;
  }
  Settle(id);
}

void GuardThread::Settle(uint64_t id) {
  Place& place = places_.at(id);
  const GuardedConnection& one = *place.connection;
  if (one.ended()) {
    End(id);
    return;
  }
  if (one.has_more()) more_.push_back(id);
  if (one.over_by() != absl::InfiniteFuture()) timed_.insert(id);
  Await(id, place);
}

void GuardThread::Await(uint64_t id, Place& place) {
  const GuardedConnection::Interest wanted = place.connection->interest();
  epoll_event event = {};
  if (wanted.client != place.awaited.client) {
    event.events = wanted.client;
    event.data.u64 = MarkOf(id, /*of_grpc=*/false);
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, place.connection->client_fd(), &event);
  }
  if (wanted.grpc != place.awaited.grpc) {
    // Where nothing is awaited it is taken out: epoll would tell of its end again and again.
    const int how = wanted.grpc == 0          ? EPOLL_CTL_DEL
                    : place.awaited.grpc == 0 ? EPOLL_CTL_ADD
                                              : EPOLL_CTL_MOD;
    event.events = wanted.grpc;
    event.data.u64 = MarkOf(id, /*of_grpc=*/true);
    epoll_ctl(epoll_.get(), how, place.connection->grpc_fd(), &event);
  }
  place.awaited = wanted;
}

void GuardThread::Leave(uint64_t id) {
  places_.erase(id);
  timed_.erase(id);
  size_.fetch_sub(1, std::memory_order_relaxed);
}

void GuardThread::EndOverdue() {
  std::vector<uint64_t> overdue;
  for (const uint64_t id : timed_) {
    const auto found = places_.find(id);
    if (found != places_.end() && found->second.connection->over_by() <= now_)
      overdue.push_back(id);
  }
  for (const uint64_t id : overdue) {
    places_.at(id).connection->GiveUp();
    End(id);
  }
}

void GuardThread::End(uint64_t id) {
  const Owned ended = std::move(places_.at(id).connection);
  ended->Close(now_);
  Leave(id);
  calls_.ended(*ended);
}

}  // namespace coordd
