#include "common/net/client_stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace coordd {
namespace {

using Outcome = ClientStream::Outcome;

// Of a call on a socket that has moved `size` bytes.
ClientStream::Moved MovedBy(ssize_t size, Outcome again) {
  if (size > 0) return {Outcome::kDone, static_cast<size_t>(size)};
  if (size == 0) return {Outcome::kEnded};
  return {errno == EAGAIN ? again : Outcome::kFailed};
}

class Plain final : public ClientStream {
 public:
  explicit Plain(int fd) : fd_(fd) {}

  Outcome Begin() override { return Outcome::kDone; }
  const std::string& failure() const override { return failure_; }
  Moved Read(char* to, size_t size) override {
    ssize_t got = 0;
    do {
      got = recv(fd_, to, size, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    return MovedBy(got, Outcome::kWantsRead);
  }
  Moved Write(absl::string_view bytes) override {
    ssize_t sent = 0;
    do {
      sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return MovedBy(sent, Outcome::kWantsWrite);
  }
  bool HasMore() const override { return false; }
  void End() override {}

 private:
  const int fd_;
  const std::string failure_;
};

}  // namespace

std::unique_ptr<ClientStream> PlainStream(int fd) { return std::make_unique<Plain>(fd); }

}  // namespace coordd
