// Whatever a peer says, in whatever pieces, between whatever this rank begins: every operation ends
// once, nothing is written beyond where it belongs, and what is kept is within the bounds.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "worker/transport/tcp/message_link.h"

namespace {

using coordd::FrameKind;

constexpr uint64_t kTags = 3;
constexpr size_t kSizes[] = {0, 1, 40, coordd::kSmallBytesMax, coordd::kSmallBytesMax + 1};

class Rank {
 public:
  Rank() : link_(coordd::Rank{1}, memory_) {}
  ~Rank() {
    link_.End(absl::AbortedError("over"));
    memory_.CallEnded();
    if (begun_ != ended_ || memory_.pending() != 0 || link_.pending() != 0) abort();
  }

  // Begins a Send or a Receive.
  void Begin(uint8_t what) {
    coordd::TcpOperation& operation = memory_.NewOperation();
    operation.tag = what % kTags;
    operation.size_bytes = kSizes[what / kTags % std::size(kSizes)];
    std::byte* const bytes = MemoryFor(operation.size_bytes);
    ++begun_;
    operation.done = [this](const absl::Status&) { ++ended_; };
    const bool sends = what >= 48;
    operation.bytes = sends ? bytes : nullptr;
    operation.landing = sends ? nullptr : bytes;
    sends ? link_.Send(operation) : link_.Receive(operation);
  }
  void Write(size_t at_most) {
    std::array<iovec, 4> parts;
    const size_t count = link_.outbox().Gather(absl::MakeSpan(parts));
    size_t size = 0;
    for (size_t i = 0; i < count; ++i) size += parts[i].iov_len;
    link_.Wrote(std::min(size, at_most), at_most % 2 == 0);
  }
  bool Hear(const uint8_t* bytes, size_t size) {
    coordd::FrameReader& reader = link_.reader();
    if (const absl::Span<std::byte> target = reader.target(); !target.empty()) {
      const size_t filled = std::min(target.size(), size);
      std::memcpy(target.data(), bytes, filled);
      reader.Filled(filled);
      bytes += filled;
      size -= filled;
    }
    return reader.Take({reinterpret_cast<const std::byte*>(bytes), size}).ok();
  }
  void CallEnded() { memory_.CallEnded(); }

 private:
  // Of exactly this size, so that what is beyond it is nobody's. Large ones, which take long to
  // make, are shared.
  std::byte* MemoryFor(size_t size) {
    static std::byte small_max[coordd::kSmallBytesMax], large[coordd::kSmallBytesMax + 1];
    if (size == std::size(small_max)) return small_max;
    if (size == std::size(large)) return large;
    buffers_.push_back(std::make_unique<std::byte[]>(size));
    return buffers_.back().get();
  }

  // Goes round from one run to the next.
  static inline coordd::LinkMemory memory_;
  coordd::MessageLink link_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  int begun_ = 0, ended_ = 0;
};

// A header that is one, else chance would make few of them.
std::array<uint8_t, coordd::FrameHeader::kBytes> HeaderOf(uint8_t kind, uint8_t what) {
  const auto encoded = coordd::Encode(
      {static_cast<FrameKind>(kind % 10), what % kTags, kSizes[what / kTags % std::size(kSizes)]});
  std::array<uint8_t, coordd::FrameHeader::kBytes> bytes;
  std::memcpy(bytes.data(), encoded.data(), bytes.size());
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Rank rank;
  for (size_t at = 0; at + 2 < size;) {
    const uint8_t step = data[at], what = data[at + 1];
    at += 2;
    if (step < 64) {
      rank.Begin(what % 96);
    } else if (step < 96) {
      rank.Write(what * size_t{step});
    } else if (step < 176) {
      const auto header = HeaderOf(step, what);
      if (!rank.Hear(header.data(), header.size())) break;
    } else if (step < 200) {
      static constexpr std::array<uint8_t, coordd::kSmallBytesMax + 1> kPayload = {};
      // Whole large ones now and then.
      const size_t piece = what < 250 ? kSizes[what % 3] : kPayload.size();
      if (!rank.Hear(kPayload.data(), piece)) break;
    } else {
      const size_t piece = std::min<size_t>(what, size - at);
      if (!rank.Hear(data + at, piece)) break;
      at += piece;
    }
    if (what % 2 == 0) rank.CallEnded();
  }
  return 0;
}
