// Whatever a peer says, in whatever pieces, between whatever this rank begins: every operation ends
// once, nothing is written beyond where it belongs, and what is kept is within the bounds. Every
// other input says it over an encrypted connection, in records with true tags, or with what was
// changed on the way, of which nothing is believed.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "worker/transport/tcp/message_link.h"
#include "worker/transport/tcp/record_reader.h"

namespace {

using coordd::FrameKind;
using coordd::RecordKind;

constexpr uint64_t kTags = 3;
constexpr size_t kSizes[] = {0, 1, 40, coordd::kSmallBytesMax, coordd::kSmallBytesMax + 1};

class Rank {
 public:
  explicit Rank(bool encrypts) : link_(coordd::Rank{1}, memory_) {
    if (!encrypts) return;
    seals_.emplace(coordd::RecordCipher::Direction::kSeals, coordd::RecordSecret());
    records_.emplace(coordd::RecordSecret());
  }
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
  void AskForHeld() { link_.AskForHeld(); }
  // Of who encrypts: how the records that follow are cut and changed on the way.
  void Choose(uint8_t how) { how_ = how; }
  bool Hear(const uint8_t* bytes, size_t size) {
    if (!seals_.has_value()) return HearPlain(bytes, size);
    bool goes_on = true;
    while (goes_on && size > 0) {
      const bool is_payload = how_ % 4 != 0 && !link_.reader().target().empty();
      const coordd::RecordHeader kinds{is_payload ? RecordKind::kPayload : RecordKind::kFrames, 0};
      // Now and then of more payload than is expected.
      const size_t most = is_payload && how_ % 8 != 1 ? link_.reader().target().size() : size;
      const size_t taken = std::min({size, most, size_t{kinds.size_max()}});
      goes_on = HearRecord({kinds.kind, static_cast<uint32_t>(taken)}, bytes);
      bytes += taken;
      size -= taken;
    }
    return goes_on;
  }
  bool HearPlain(const uint8_t* bytes, size_t size) {
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
  bool HearRecord(const coordd::RecordHeader& header, const uint8_t* bytes) {
    std::vector<std::byte> record(header.size_bytes + coordd::kRecordOverheadBytes);
    const coordd::EncodedRecordHeader encoded = coordd::Encode(header);
    std::memcpy(record.data(), encoded.data(), encoded.size());
    std::byte* const text = record.data() + encoded.size();
    seals_->Begin(encoded);
    seals_->Update(reinterpret_cast<const std::byte*>(bytes), text, header.size_bytes);
    seals_->Seal(text + header.size_bytes);
    if (how_ >= 240) {
      record[how_ * size_t{977} % record.size()] ^= static_cast<std::byte>(1 << how_ % 8);
      was_changed_ = true;
    }
    return HearRecords(record, how_ % 16 < 8 ? record.size() : size_t{how_});
  }
  // In pieces of that many bytes at most.
  bool HearRecords(absl::Span<const std::byte> record, size_t piece) {
    for (;;) {
      const auto opened = records_->Open(link_.reader().target());
      if (!opened.ok()) return false;
      if (opened->is_any()) {
        if (was_changed_) abort();
        if (opened->placed > 0) link_.reader().Filled(opened->placed);
        if (!link_.reader().Take(opened->frames).ok()) return false;
        continue;
      }
      if (record.empty()) return true;
      std::array<iovec, 2> parts;
      const size_t count = records_->Room(link_.reader().target(), piece % 2 == 0, parts);
      size_t filled = 0;
      for (size_t i = 0; i < count; ++i) {
        const size_t size = std::min({parts[i].iov_len, record.size(), piece - filled});
        std::memcpy(parts[i].iov_base, record.data(), size);
        record.remove_prefix(size);
        filled += size;
        if (size < parts[i].iov_len) break;
      }
      if (filled == 0) abort();
      records_->Filled(filled);
    }
  }
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
  // Of who encrypts.
  std::optional<coordd::RecordCipher> seals_;
  std::optional<coordd::RecordReader> records_;
  uint8_t how_ = 1;
  bool was_changed_ = false;
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
  Rank rank(/*encrypts=*/size % 2 == 1);
  for (size_t at = 0; at + 2 < size;) {
    const uint8_t step = data[at], what = data[at + 1];
    at += 2;
    if (step < 60) {
      rank.Begin(what % 96);
    } else if (step < 64) {
      rank.AskForHeld();
    } else if (step < 72) {
      rank.Choose(what);
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
