// How much of a message that gRPC writes is on its way: a whole one may take minutes on a slow
// link. (io)
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstddef>
#include <memory>

namespace coordd {

// Small beside the buffer of a socket, and large beside the hundred bytes that each takes.
inline constexpr size_t kPieceBytes = size_t{16} << 10;

using WrittenBytes = std::atomic<size_t>;

// The same message, without a copy of its bytes, in pieces that count in `written` once nobody
// holds them any more: gRPC lets a piece go when the socket has taken it.
grpc::ByteBuffer InPieces(const grpc::ByteBuffer& message,
                          const std::shared_ptr<WrittenBytes>& written);

}  // namespace coordd
