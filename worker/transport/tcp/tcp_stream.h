// The bytes of one connection behind its handshake: in plain, or encrypted. (io)
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/owned_fd.h"
#include "worker/transport/tcp/record_reader.h"
#include "worker/transport/tcp/record_writer.h"

namespace coordd {

// Owns the socket, which does not block. One thread uses it.
class TcpStream {
 public:
  // What was written.
  struct Moved {
    size_t bytes = 0;
    bool is_over = false;  // nothing will be moved any more
    std::string why;       // it is over, for people
  };
  // What was read, which is to be believed.
  struct Got {
    size_t placed = 0;                   // bytes at the beginning of the target,
    absl::Span<const std::byte> others;  // and those behind them, which stay until the next Read
    bool was_all = false;                // no more has come yet
    bool has_moved = false;              // something has come, of which the rest is missing, too
    bool is_over = false;
    bool is_wrong = false;  // it is over, since what has come is not to be believed
    std::string why;
  };

  // In plain.
  explicit TcpStream(OwnedFd socket);
  // Encrypted.
  TcpStream(OwnedFd socket, const RecordSecret& sends, const RecordSecret& receives);

  int socket() const { return socket_.get(); }
  bool encrypts() const { return writer_.has_value(); }
  // Some bytes; none: there are none now. `target` is where the payload that is coming goes, all
  // that is left of it, or empty: it stays the same as long as nothing is placed there. Its bytes
  // are what was sent when they are `placed`. `room` is for what comes behind it; no more room than
  // for a header says that what comes may be payload, for which there is a target soon.
  Got Read(absl::Span<std::byte> target, absl::Span<std::byte> room);
  // Whether something that is read is here and not at the socket any more, which then tells of
  // nothing.
  bool has_buffered() const { return reader_.has_value() && reader_->can_open(); }
  // Some bytes of these; 0: none now. What was taken may still be here, to be sent first by the
  // next Write or Flush. `room`: to encrypt in, RecordWriter::kRoomBytesMin or as much as all of it
  // takes; not used in plain.
  Moved Write(absl::Span<const iovec> parts, absl::Span<std::byte> room);
  // Sends as much as can be sent of what is still here.
  Moved Flush();
  bool has_unsent() const { return unsent_from_ < unsent_.size(); }
  // Nothing more is sent; what has been is delivered.
  void EndSending();

 private:
  Got ReadPlain(absl::Span<std::byte> target, absl::Span<std::byte> room);
  Got ReadRecords(absl::Span<std::byte> target, bool sparing);
  // What a call of readv has returned, if it is the end of the connection.
  std::optional<Got> EndOf(ssize_t got) const;

  OwnedFd socket_;
  // Of who encrypts.
  std::optional<RecordWriter> writer_;
  std::optional<RecordReader> reader_;
  bool was_emptied_ = false;       // the socket had less than was asked for
  std::vector<std::byte> unsent_;  // what is sealed, and the connection had no room for
  size_t unsent_from_ = 0;
};

}  // namespace coordd
