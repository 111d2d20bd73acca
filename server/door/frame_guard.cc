#include "server/door/frame_guard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr absl::string_view kClientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

constexpr uint8_t kEndsStream = 1, kEndsHeaders = 4, kAnswers = 1;

// gRPC's head of a message: in fewer bytes there is nothing whole.
constexpr size_t kMessageHead = 5;
// Of a setting's 6 bytes as many as an honest client sends at once: more count as more frames.
constexpr double kSettingsBytes = 60;

struct KindName {
  FrameKind kind;
  absl::string_view text;
};
constexpr KindName kNames[] = {
    {FrameKind::kCallWithoutMessage, "calls that are reset or have no message"},
    {FrameKind::kSettings, "SETTINGS frames"},
    {FrameKind::kPing, "PING frames"},
    {FrameKind::kPriority, "PRIORITY frames"},
    {FrameKind::kEmptyData, "DATA frames without data"},
    {FrameKind::kWindowUpdate, "WINDOW_UPDATE frames"},
    {FrameKind::kUnknown, "frames that mean nothing here"},
};

}  // namespace

FrameGuard::FrameGuard(const FrameBounds& bounds, absl::Time now,
                       std::shared_ptr<SharedBudget> calls)
    : bounds_(bounds), calls_(calls), beside_(std::move(calls)) {
  for (size_t kind = 0; kind < kFrameKinds; ++kind)
    purses_[kind] = {.tokens = bounds_.budgets[kind].burst, .given_at = now};
}

absl::Status FrameGuard::Take(absl::string_view bytes, absl::Time now) {
  while (!bytes.empty()) {
    if (skipping_ > 0) {
      const size_t skip = std::min(skipping_, bytes.size());
      skipping_ -= skip;
      bytes.remove_prefix(skip);
      continue;
    }
    const size_t whole = greeted_ ? kFrameHeadBytes : kPrefaceBytes;
    const size_t taken = std::min(whole - head_size_, bytes.size());
    std::memcpy(head_.data() + head_size_, bytes.data(), taken);
    head_size_ += taken;
    bytes.remove_prefix(taken);
    if (head_size_ < whole) break;
    head_size_ = 0;
    if (!greeted_) {
      if (absl::string_view(head_.data(), kPrefaceBytes) != kClientPreface)
        return absl::InvalidArgumentError("what is not HTTP/2");
      greeted_ = true;
      continue;
    }
    const FrameHead frame = FrameHeadAt(head_.data());
    COORDD_RETURN_IF_ERROR(TakeFrame(frame, now));
    skipping_ = frame.size;
  }
  return absl::OkStatus();
}

absl::Status FrameGuard::TakeFrame(const FrameHead& frame, absl::Time now) {
  if (frame.size > bounds_.frame_bytes)
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame of ", frame.size, " bytes, where at most ", bounds_.frame_bytes, " are taken"));
  if (!has_settings_ && frame.type != FrameType::kSettings)
    return absl::InvalidArgumentError("another frame before its settings");
  if (frame.type == FrameType::kContinuation) return TakeContinuation(frame);
  if (block_stream_ != 0)
    return absl::InvalidArgumentError("another frame within a block of headers");
  switch (frame.type) {
    case FrameType::kData:
      return TakeData(frame, now);
    case FrameType::kHeaders:
      return TakeHeaders(frame, now);
    case FrameType::kPriority:
      return Spend(FrameKind::kPriority, 1, now);
    case FrameType::kResetStream:
      EndCall(frame.stream);
      return Spend(FrameKind::kCallWithoutMessage, 1, now);
    case FrameType::kSettings:
      has_settings_ = true;
      return Spend(FrameKind::kSettings, 1 + static_cast<double>(frame.size) / kSettingsBytes, now);
    case FrameType::kPing:
      if ((frame.flags & kAnswers) != 0 && pings_.unanswered > 0 && --pings_.unanswered == 0)
        pings_ = {.answered_idle = pings_.were_idle};
      return Spend(FrameKind::kPing, 1, now);
    case FrameType::kWindowUpdate:
      return Spend(FrameKind::kWindowUpdate, 1, now);
    case FrameType::kGoaway:
      said_goodbye_ = true;
      return Spend(FrameKind::kUnknown, 1, now);
    default:
      return Spend(FrameKind::kUnknown, 1, now);
  }
}

absl::Status FrameGuard::TakeHeaders(const FrameHead& frame, absl::Time now) {
  if (frame.stream == 0) return absl::InvalidArgumentError("headers of no call");
  block_bytes_ = frame.size;
  block_frames_ = 1;
  if ((frame.flags & kEndsHeaders) == 0) block_stream_ = frame.stream;
  COORDD_RETURN_IF_ERROR(BeginCall(frame.stream, now));
  if ((frame.flags & kEndsStream) != 0)
    COORDD_RETURN_IF_ERROR(Spend(FrameKind::kCallWithoutMessage, 1, now));
  else
    ++unended_;
  return HeadersWithinBounds();
}

absl::Status FrameGuard::BeginCall(uint32_t stream, absl::Time now) {
  if (stream <= last_call_) {
    // Trailers of a call, which no client of gRPC's sends, or headers of one that has ended.
    return Spend(FrameKind::kCallWithoutMessage, 1, now);
  }
  last_call_ = stream;
  open_.insert(stream);
  pings_.met_a_call = pings_.met_a_call || pings_.unanswered > 0;
  if (open_.size() > bounds_.calls)
    return absl::ResourceExhaustedError(
        absl::StrCat("more calls at a time than the ", bounds_.calls, " that it was told"));
  if (open_.size() > bounds_.free_calls && !beside_.Add(now))
    return absl::ResourceExhaustedError(absl::StrCat(
        "more than ", bounds_.free_calls, " calls at a time, while all its connections have ",
        SharedBudget::kOpenCallsMax, " beside the first ", bounds_.free_calls,
        " of each, or others of its connections have ended with many under way"));
  return absl::OkStatus();
}

void FrameGuard::EndCall(uint32_t stream) {
  if (open_.erase(stream) > 0 && open_.size() >= bounds_.free_calls) beside_.Remove();
}

void FrameGuard::End(absl::Time now) {
  if (calls_ != nullptr && beside_.count() > 0)
    calls_->LeftOpen(static_cast<double>(beside_.count()), now);
}

void FrameGuard::Said(const FrameHead& frame) {
  const bool may_end = frame.type == FrameType::kHeaders || frame.type == FrameType::kData;
  if (frame.type == FrameType::kResetStream || (may_end && (frame.flags & kEndsStream) != 0))
    EndCall(frame.stream);
  pings_.answered_idle = false;
  // An answer of a few bytes is read as one of many is: the client moves both windows on. And where
  // a window ends a frame ends, however little is in it; settings may move those of all calls.
  if (frame.type == FrameType::kData && frame.size > 0) Grant(FrameKind::kWindowUpdate, 2);
  if (frame.type == FrameType::kWindowUpdate) Grant(FrameKind::kEmptyData, 2);
  if (frame.type == FrameType::kSettings)
    Grant(FrameKind::kEmptyData, static_cast<double>(open_.size()));
  if (frame.type != FrameType::kPing || (frame.flags & kAnswers) != 0) return;
  if (pings_.unanswered == 0) pings_.were_idle = open_.empty();
  ++pings_.unanswered;
  pings_.met_a_call = pings_.met_a_call || !open_.empty();
}

absl::Status FrameGuard::TakeContinuation(const FrameHead& frame) {
  if (block_stream_ == 0 || frame.stream != block_stream_)
    return absl::InvalidArgumentError("a CONTINUATION of no block of headers");
  block_bytes_ += frame.size;
  ++block_frames_;
  if ((frame.flags & kEndsHeaders) != 0) block_stream_ = 0;
  return HeadersWithinBounds();
}

absl::Status FrameGuard::HeadersWithinBounds() const {
  if (block_bytes_ > bounds_.header_bytes)
    return absl::ResourceExhaustedError(
        absl::StrCat("a block of headers of more than ", bounds_.header_bytes >> 10, " KiB"));
  if (block_frames_ > bounds_.header_frames)
    return absl::ResourceExhaustedError(
        absl::StrCat("a block of headers in more than ", bounds_.header_frames, " frames"));
  return absl::OkStatus();
}

absl::Status FrameGuard::TakeData(const FrameHead& frame, absl::Time now) {
  const bool ends = (frame.flags & kEndsStream) != 0 && unended_ > 0;
  if (ends) --unended_;
  if (ends || frame.size >= kMessageHead) return absl::OkStatus();
  return Spend(FrameKind::kEmptyData, 1, now);
}

absl::Status FrameGuard::Spend(FrameKind kind, double tokens, absl::Time now) {
  const FrameBudget& budget = bounds_.budgets[static_cast<size_t>(kind)];
  Purse& purse = purses_[static_cast<size_t>(kind)];
  const double seconds = std::max(absl::ToDoubleSeconds(now - purse.given_at), 0.0);
  const auto answered = static_cast<double>(answered_ - purse.answered);
  const double given =
      seconds * budget.per_second + answered * budget.per_answered_byte + purse.granted;
  purse = {.tokens = std::min(budget.burst, purse.tokens + given) - tokens,
           .given_at = std::max(now, purse.given_at),
           .answered = answered_};
  if (purse.tokens >= 0) {
    if (kind != FrameKind::kCallWithoutMessage || calls_ == nullptr || calls_->Spend(tokens, now))
      return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "more calls that are reset or have no message, on all its connections together, than an "
        "honest client: above ",
        SharedBudgets::kBurst, " at once and ", SharedBudgets::kPerSecond, " a second"));
  }
  for (const KindName& one : kNames) {
    if (one.kind != kind) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("more ", one.text, " than an honest client: above ", budget.burst,
                     " at once and ", budget.per_second, " a second"));
  }
  return absl::InternalError("a kind of frame without a name");
}

}  // namespace coordd
