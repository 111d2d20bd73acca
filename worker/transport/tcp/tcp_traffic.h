// The connections of a transport that are there, and what goes over them. (io)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "worker/base/aligned_buffer.h"
#include "worker/transport/tcp/poll_set.h"
#include "worker/transport/tcp/tcp_peer.h"

namespace coordd {

// Writes what their links have to say, and has these hear what has come. One thread uses it.
class TcpTraffic {
 public:
  // How a connection has ended: it was ended, or what has come is not to be believed.
  enum class End { kEnded, kWrong };
  // Is to Remove the connection, and may remove others.
  using OnEnd = std::function<void(TcpConnection&, End, std::string why)>;

  // `polls` outlives it.
  explicit TcpTraffic(PollSet& polls) : polls_(polls) {}
  TcpTraffic(const TcpTraffic&) = delete;
  TcpTraffic& operator=(const TcpTraffic&) = delete;

  // `connections`: with each peer; `first_key`: its sockets have this key, and those above it.
  void Open(int32_t connections, bool encrypts, uint64_t first_key, OnEnd on_end);
  // It has its stream, of which the PollSet knows by another key.
  void Add(TcpConnection& connection);
  // Closes its stream.
  void Remove(TcpConnection& connection);
  // Nothing more is sent over it, and what has come is read.
  void EndSending(TcpConnection& connection);

  // Its link may have something to say.
  void WantsFlush(TcpConnection& connection);
  // Writes, to those that have room. Whether anything has moved.
  bool FlushAll();
  // What comes over connections for which nothing is under way stays with the kernel, which copies
  // it once where it belongs, instead of being kept here and copied twice; or is read all the same.
  void LeaveUnexpected(bool leave) { leaves_unexpected_ = leave; }
  // Reads what is to be read without asking the PollSet. Whether anything has moved.
  bool ReadUnasked();
  // Whether that is all, unless somebody is blocked.
  bool is_few() const { return connected_.size() <= few_; }
  bool Read(TcpConnection& connection);
  // What the PollSet has said of a socket with this key.
  bool OnReady(TcpConnection& connection, uint32_t events);
  // Peer's rank, and number, of a key.
  static std::pair<size_t, int32_t> ConnectionOf(uint64_t key_beyond_first);

  // Whether somebody has no room.
  bool is_blocked() const { return blocked_ > 0; }
  // Whether something was read ahead, of which the PollSet does not tell.
  bool has_read_ahead() const { return !to_read_.empty(); }
  bool has_to_flush() const { return !to_flush_.empty(); }
  // Whether something is still here that is to be sent.
  bool has_unsent() const;
  const std::vector<TcpConnection*>& connected() const { return connected_; }

 private:
  bool Flush(TcpConnection& connection);
  void ReadToItsEnd(TcpConnection& connection);
  // Whether what has come over it stays with the kernel.
  bool IsLeft(const TcpConnection& connection) const;
  absl::Span<std::byte> RoomBeside(TcpConnection& connection);
  void KeepEvents(TcpConnection& connection, bool is_blocked);
  uint64_t KeyOf(const TcpConnection& connection) const;

  // Constant after construction.
  PollSet& polls_;

  // Constant after Open.
  OnEnd on_end_;
  uint64_t first_key_ = 0;
  size_t few_ = 0;

  // Touched by the owner's thread.
  std::vector<TcpConnection*> connected_;
  std::vector<TcpConnection*> to_read_;   // with something that was read ahead
  std::vector<TcpConnection*> to_flush_;  // with something to send
  std::vector<TcpConnection*> flushing_;  // empty between calls, for its memory
  int32_t blocked_ = 0;                   // those whose connection has no room
  AlignedBuffer scratch_;                 // what is read that has no place yet
  std::vector<std::byte> sealing_;        // of who encrypts: what is about to be sent
  bool leaves_unexpected_ = false;
};

}  // namespace coordd
