// A connection of HttpServer's, and how its answer leaves. (io)
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/net/client_stream.h"
#include "common/net/http_request.h"
#include "common/net/peer_address.h"

namespace coordd {

struct HttpConnection {
  enum class State { kBeginning, kReading, kHandling, kWriting, kClosing };
  OwnedFd fd;
  PeerAddress peer;
  std::unique_ptr<ClientStream> stream;  // null until something has come
  State state = State::kBeginning;
  bool has_handshake = false;  // HandshakeLimit counts it
  absl::Time since;            // it is there, or its answer is
  absl::Time deadline;
  std::string bytes = "";  // received, then to be written
  size_t written = 0;
  size_t counted = 0;    // among all answers that are made or wait to be taken
  bool widened = false;  // the kernel was asked to take more
};

// epoll tells of each change, to read or to write, so what is awaited need not be told.
inline bool IsAwaited(ClientStream::Outcome outcome) {
  return outcome == ClientStream::Outcome::kWantsRead ||
         outcome == ClientStream::Outcome::kWantsWrite;
}

// Writes what the client takes now. False: it has not taken all; otherwise it has, or never will.
bool WriteAnswer(HttpConnection& one);

// Others are as small as a request: they pass, and need not be counted.
inline bool IsCounted(size_t answer_bytes) { return answer_bytes > kMaxHttpRequestBytes; }

// Not thread-safe. How large answers were, so that one without room need not be made.
class AnswerSizes {
 public:
  // 0: it is not known.
  size_t Of(const HttpRequest& request) const;
  void Note(const HttpRequest& request, size_t bytes);

 private:
  std::map<std::string, size_t> sizes_;  // of counted ones, by path and query
};

}  // namespace coordd
