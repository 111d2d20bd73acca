#include "relay/message_pieces.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <vector>

#include "common/base/tsan_annotations.h"

namespace coordd {
namespace {

struct Piece {
  grpc::Slice of;  // keeps the bytes
  std::shared_ptr<WrittenBytes> written;
  size_t bytes;
};

void OnLetGo(void* let_go) {
  const std::unique_ptr<Piece> piece(static_cast<Piece*>(let_go));
  COORDD_TSAN_ACQUIRE(piece.get());
  piece->written->fetch_add(piece->bytes, std::memory_order_relaxed);
}

}  // namespace

grpc::ByteBuffer InPieces(const grpc::ByteBuffer& message,
                          const std::shared_ptr<WrittenBytes>& written) {
  std::vector<grpc::Slice> slices, pieces;
  if (!message.Dump(&slices).ok()) return message;
  for (const grpc::Slice& slice : slices) {
    for (size_t begin = 0; begin < slice.size(); begin += kPieceBytes) {
      const size_t bytes = std::min(kPieceBytes, slice.size() - begin);
      auto piece = std::make_unique<Piece>(Piece{slice, written, bytes});
      // A short slice has its bytes in itself.
      auto* const from = const_cast<uint8_t*>(piece->of.begin()) + begin;
      COORDD_TSAN_RELEASE(piece.get());
      pieces.emplace_back(from, bytes, &OnLetGo, piece.release());
    }
  }
  return {pieces.data(), pieces.size()};
}

}  // namespace coordd
