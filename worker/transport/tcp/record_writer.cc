#include "worker/transport/tcp/record_writer.h"

#include <algorithm>
#include <cstring>

namespace coordd {

size_t RecordWriter::SealRecord(RecordKind kind, absl::Span<const iovec> parts, size_t size,
                                std::byte* to) {
  const EncodedRecordHeader header = Encode(RecordHeader{kind, static_cast<uint32_t>(size)});
  std::memcpy(to, header.data(), header.size());
  std::byte* next = to + header.size();
  cipher_.Begin(header);
  for (const iovec& part : parts) {
    cipher_.Update(static_cast<const std::byte*>(part.iov_base), next, part.iov_len);
    next += part.iov_len;
  }
  cipher_.Seal(next);
  return size + kRecordOverheadBytes;
}

RecordWriter::Sealed RecordWriter::Seal(absl::Span<const iovec> parts, absl::Span<std::byte> to) {
  Sealed sealed;
  // Of the first part, which records of the round before have taken.
  size_t skipped = 0;
  while (!parts.empty() && to.size() - sealed.bytes > kRecordOverheadBytes) {
    const size_t room = to.size() - sealed.bytes - kRecordOverheadBytes;
    std::byte* const next = to.data() + sealed.bytes;
    const size_t left = parts[0].iov_len - skipped;
    if (parts[0].iov_len >= kPayloadBytesMin) {
      const size_t size = std::min({left, room, size_t{RecordHeader::kPayloadBytesMax}});
      if (size < left && size < kPayloadBytesMin) break;  // too little room to be worth a record
      const iovec part = {static_cast<std::byte*>(parts[0].iov_base) + skipped, size};
      sealed.bytes += SealRecord(RecordKind::kPayload, {&part, 1}, size, next);
      sealed.taken += size;
      skipped = size < left ? skipped + size : 0;
      if (size == left) parts.remove_prefix(1);
      continue;
    }
    const size_t size_max = std::min(room, size_t{RecordHeader::kFramesBytesMax});
    size_t count = 0, size = 0;
    while (count < parts.size() && parts[count].iov_len < kPayloadBytesMin &&
           size + parts[count].iov_len <= size_max) {
      size += parts[count++].iov_len;
    }
    if (count == 0) break;
    sealed.bytes += SealRecord(RecordKind::kFrames, parts.first(count), size, next);
    sealed.taken += size;
    parts.remove_prefix(count);
  }
  return sealed;
}

}  // namespace coordd
