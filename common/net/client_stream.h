// The bytes that a client and coordd say to each other: as they are, or out of TLS. (io)
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

// Not thread-safe. On a socket that does not block, and that stays its owner's.
class ClientStream {
 public:
  enum class Outcome {
    kDone,
    kWantsRead,   // again when there is something to read
    kWantsWrite,  // again when there is room to write
    kEnded,       // by the client, in order
    kFailed,      // the connection is no more, or is not what it should be
  };
  struct Moved {
    Outcome outcome = Outcome::kDone;
    size_t bytes = 0;  // of kDone: at least 1
  };

  // What comes before the first byte. Of kFailed `failure` says why, where the client is to blame.
  virtual Outcome Begin() = 0;
  virtual const std::string& failure() const = 0;
  virtual Moved Read(char* to, size_t size) = 0;
  // What of `bytes`, which are not empty, was taken.
  virtual Moved Write(absl::string_view bytes) = 0;
  // Whether there may be something to read that the socket does not tell of.
  virtual bool HasMore() const = 0;
  virtual void End() = 0;  // says that nothing more comes
  virtual ~ClientStream() = default;
};

std::unique_ptr<ClientStream> PlainStream(int fd);

}  // namespace coordd
