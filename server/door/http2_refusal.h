// Says one sentence to a gRPC client without letting it in.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coordd {

// PURE. Not thread-safe. One connection, on which a client speaks HTTP/2 without TLS: its first
// call is answered with a status, whatever it is. Nothing is decoded but the heads of frames, and
// nothing is kept, so a stranger can make it do nothing else. RFC 9113; grpc/doc/PROTOCOL-HTTP2.md.
class Http2Refusal {
 public:
  // `why`: not OK; its message is ASCII.
  explicit Http2Refusal(absl::Status why) : why_(std::move(why)) {}

  // Takes what the client has sent, in pieces as they come, its preface first. The return value is
  // to be sent; afterwards done() says whether the connection ends with it.
  std::string Take(absl::string_view bytes);
  bool done() const { return done_; }

 private:
  std::string Answer(absl::string_view head);

  const absl::Status why_;
  std::string head_;     // of what is being received: the preface, then a frame's
  size_t skipping_ = 0;  // bytes of the frame's payload that are still to come
  size_t taken_ = 0;
  bool greeted_ = false;
  bool done_ = false;
};

// What a browser or another client of HTTP/1 is told at a port for gRPC.
std::string Http1Refusal(absl::string_view sentence);

// What a client that begins with TLS is told where none is spoken: the alert
// no_application_protocol (RFC 7301), which no gRPC server of ours sends otherwise.
std::string TlsRefusal();

// What a client that begins with TLS is told where it is spoken, and there is no room to say why:
// the alert internal_error.
std::string TlsFullRefusal();

}  // namespace coordd
