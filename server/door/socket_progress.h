// What the kernel knows of a connection that somebody else of this process reads and writes. (io)
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace coordd {

// Tells whether a descriptor still is the connection that it was; 0: it is none.
uint64_t SocketCookie(int fd);

// Bytes that have arrived since the connection began, read or not; UINT64_MAX: not known.
uint64_t BytesReceived(int fd);

// The bytes that have arrived and that somebody in this process has read; 0: not known.
uint64_t BytesTaken(int fd);

// Whether all that has arrived was read and answered, some time ago: it is the client's turn.
// `asked`: bytes that had arrived before there was any answer.
bool ClientIsAwaited(int fd, uint64_t asked);

// Whether the other side has ended the connection: what it has said before may be unread.
bool HasEnded(int fd);

// How long what was sent may stay without an answer of the other machine's; those that `fd`
// accepts have it from there.
void SetUserTimeout(int fd, int timeout_ms);

// Ends the connection as both sides see it, if `fd` still is the one with this cookie. Its
// descriptor stays with its owner, who closes it.
void EndConnection(int fd, uint64_t cookie);

}  // namespace coordd
