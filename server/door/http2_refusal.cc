#include "server/door/http2_refusal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/door/http2_frame.h"

namespace coordd {
namespace {

// Settings, a window and the headers of one call are some hundred bytes.
constexpr size_t kMaxBytes = 64 << 10;

constexpr char kAck = 1, kEndStream = 1, kEndHeaders = 4;

std::string BigEndian(uint32_t value, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    out += static_cast<char>((value >> shift) & 0xff);
  return out;
}

std::string Frame(FrameType type, char flags, absl::string_view stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3),
                      std::string({static_cast<char>(type), flags}), stream, payload);
}

// RFC 7541, 5.1 and 5.2: a text as it is, its length in 7 bits or more.
std::string HpackText(absl::string_view text) {
  std::string out;
  if (text.size() < 127) {
    out += static_cast<char>(text.size());
  } else {
    size_t rest = text.size() - 127;
    out += '\x7f';
    for (; rest >= 128; rest /= 128) out += static_cast<char>(rest % 128 + 128);
    out += static_cast<char>(rest);
  }
  return absl::StrCat(out, text);
}

// The header of a gRPC answer that is nothing but a status.
std::string StatusBlock(const absl::Status& why) {
  const std::string new_name(1, '\0');
  return absl::StrCat(
      "\x88"      // :status 200
      "\x0f\x10"  // content-type
      ,
      HpackText("application/grpc"), new_name, HpackText("grpc-status"),
      HpackText(absl::StrCat(static_cast<int>(why.code()))), new_name, HpackText("grpc-message"),
      HpackText(why.message()));
}

}  // namespace

std::string Http2Refusal::Take(absl::string_view bytes) {
  std::string out;
  taken_ += bytes.size();
  done_ = done_ || taken_ > kMaxBytes;
  while (!bytes.empty() && !done_) {
    if (skipping_ > 0) {
      const size_t skip = std::min(skipping_, bytes.size());
      skipping_ -= skip;
      bytes.remove_prefix(skip);
      continue;
    }
    const size_t wanted = (greeted_ ? kFrameHeadBytes : kPrefaceBytes) - head_.size();
    absl::StrAppend(&head_, bytes.substr(0, wanted));
    bytes.remove_prefix(std::min(wanted, bytes.size()));
    if (head_.size() < (greeted_ ? kFrameHeadBytes : kPrefaceBytes)) break;
    out += greeted_ ? Answer(head_) : Frame(FrameType::kSettings, 0, BigEndian(0, 4), "");
    greeted_ = true;
    head_.clear();
  }
  return out;
}

std::string Http2Refusal::Answer(absl::string_view head) {
  const FrameHead frame = FrameHeadAt(head.data());
  skipping_ = frame.size;
  if (frame.type == FrameType::kSettings && (frame.flags & kAck) == 0)
    return Frame(FrameType::kSettings, kAck, BigEndian(0, 4), "");
  if (frame.type != FrameType::kHeaders) return "";
  const absl::string_view stream = head.substr(5, 4);
  done_ = true;
  // The reset, without an error: the client need not say the rest of its call.
  return absl::StrCat(
      Frame(FrameType::kHeaders, kEndHeaders | kEndStream, stream, StatusBlock(why_)),
      Frame(FrameType::kResetStream, 0, stream, BigEndian(0, 4)),
      Frame(FrameType::kGoaway, 0, BigEndian(0, 4), absl::StrCat(stream, BigEndian(0, 4))));
}

std::string Http1Refusal(absl::string_view sentence) {
  return absl::StrCat("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: ",
                      sentence.size() + 1, "\r\nConnection: close\r\n\r\n", sentence, "\n");
}

std::string TlsRefusal() {
  constexpr char kAlert[] = "\x15\x03\x01\x00\x02\x02\x78";
  return std::string(kAlert, sizeof(kAlert) - 1);
}

std::string TlsFullRefusal() {
  constexpr char kAlert[] = "\x15\x03\x01\x00\x02\x02\x50";
  return std::string(kAlert, sizeof(kAlert) - 1);
}

}  // namespace coordd
