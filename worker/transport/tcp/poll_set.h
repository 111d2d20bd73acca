// Which sockets of a transport something has happened at. (io)
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/owned_fd.h"

namespace coordd {

// An epoll; each socket has a key that its owner knows it by. One thread uses it.
class PollSet {
 public:
  // UNAVAILABLE: the system has no more.
  absl::Status Open();
  int descriptor() const { return epoll_.get(); }

  // `events`: EPOLLIN, EPOLLOUT, of which it is told as long as they last. A socket leaves when it
  // is closed.
  absl::Status Add(int socket, uint64_t key, uint32_t events);
  void Change(int socket, uint64_t key, uint32_t events);
  // Those at which something has happened, at most as many as there is room for; does not wait.
  absl::Span<epoll_event> Poll(absl::Span<epoll_event> room) const;

 private:
  OwnedFd epoll_;
};

}  // namespace coordd
