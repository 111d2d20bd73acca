#include "worker/transport/tcp/record_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// What is read at once where payload may follow that is not to be copied.
constexpr size_t kSparingBytes = size_t{2} << 10;

}  // namespace

RecordReader::RecordReader(const RecordSecret& secret)
    : cipher_(RecordCipher::Direction::kOpens, secret) {}

absl::Status RecordReader::FalseTag() const {
  return absl::InvalidArgumentError(absl::StrCat(
      "record ", cipher_.records(), " of its connection is not what was sent: its tag is false"));
}

void RecordReader::Place(size_t bytes) {
  placed_ += bytes;
  to_place_ -= bytes;
  place_ += bytes;
}

void RecordReader::BeginPlacing(const RecordHeader& header, absl::Span<std::byte> target) {
  is_placing_ = true;
  place_ = target.data();
  placed_ = 0;
  to_place_ = header.size_bytes;
  const size_t here = std::min(held(), to_place_);
  cipher_.Update(next(), place_, here);
  begin_ += here;
  Place(here);
}

absl::StatusOr<RecordReader::Opened> RecordReader::OpenFrames(const RecordHeader& header) {
  std::byte* const bytes = held_.get() + begin_;
  cipher_.Update(bytes, bytes, header.size_bytes);
  begin_ += header.size_bytes + kRecordTagBytes;
  if (!cipher_.Open(bytes + header.size_bytes)) return FalseTag();
  return Opened{0, {bytes, header.size_bytes}};
}

absl::StatusOr<RecordReader::Opened> RecordReader::Open(absl::Span<std::byte> target) {
  if (!is_placing_) {
    if (held() < RecordHeader::kBytes) return Opened();
    RecordHeader header;
    if (!ParseRecordHeader(next(), header))
      return absl::InvalidArgumentError("what has come is no record");
    const bool places = header.kind == RecordKind::kPayload;
    if (places && header.size_bytes > target.size()) {
      return absl::InvalidArgumentError(absl::StrCat("a record of ", header.size_bytes,
                                                     " bytes of payload has come, where ",
                                                     target.size(), " are expected"));
    }
    if (!places && held() < header.size_bytes + kRecordOverheadBytes) return Opened();
    cipher_.Begin(Encode(header));
    begin_ += RecordHeader::kBytes;
    if (!places) return OpenFrames(header);
    BeginPlacing(header, target);
  }
  if (to_place_ > 0 || held() < kRecordTagBytes) return Opened();
  is_placing_ = false;
  begin_ += kRecordTagBytes;
  if (!cipher_.Open(next() - kRecordTagBytes)) return FalseTag();
  return Opened{placed_, {}};
}

bool RecordReader::can_open() const {
  if (is_placing_) return to_place_ == 0 && held() >= kRecordTagBytes;
  RecordHeader header;
  if (held() < RecordHeader::kBytes) return false;
  return !ParseRecordHeader(next(), header) || held() >= header.size_bytes + kRecordOverheadBytes;
}

size_t RecordReader::Room(absl::Span<std::byte> target, bool sparing, std::array<iovec, 2>& parts) {
  if (held_ == nullptr) held_ = std::make_unique_for_overwrite<std::byte[]>(kHeldBytesMax);
  if (begin_ > 0) {
    std::memmove(held_.get(), next(), held());
    end_ = held();
    begin_ = 0;
  }
  size_t count = 0;
  size_t size = sparing ? kSparingBytes : kHeldBytesMax;
  if (is_placing_) {
    if (to_place_ > 0) parts[count++] = {place_, to_place_};
    // Where more of the payload follows, that is to be read to where it belongs, too.
    const bool goes_on = placed_ + to_place_ < target.size();
    if (goes_on) size = kRecordOverheadBytes;
  } else if (RecordHeader header; held() >= RecordHeader::kBytes) {
    // It is one of frames, of which some is missing: a header that is none was not to be read on.
    if (ParseRecordHeader(held_.get(), header))
      size = std::max(size, header.size_bytes + kRecordOverheadBytes);
  }
  size = std::min(size, kHeldBytesMax);
  if (size > end_) parts[count++] = {held_.get() + end_, size - end_};
  return count;
}

void RecordReader::Filled(size_t bytes) {
  if (is_placing_ && to_place_ > 0) {
    const size_t here = std::min(bytes, to_place_);
    cipher_.Update(place_, place_, here);
    Place(here);
    bytes -= here;
  }
  end_ += bytes;
}

}  // namespace coordd
