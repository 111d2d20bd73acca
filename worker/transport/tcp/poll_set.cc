#include "worker/transport/tcp/poll_set.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace coordd {

absl::Status PollSet::Open() {
  epoll_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
  if (epoll_.valid()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("epoll: error ", errno));
}

absl::Status PollSet::Add(int socket, uint64_t key, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("epoll_ctl: error ", errno));
}

void PollSet::Change(int socket, uint64_t key, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = key;
  COORDD_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event) == 0);
}

absl::Span<epoll_event> PollSet::Poll(absl::Span<epoll_event> room) const {
  const int count = epoll_wait(epoll_.get(), room.data(), static_cast<int>(room.size()), 0);
  return room.first(count > 0 ? static_cast<size_t>(count) : 0);
}

}  // namespace coordd
