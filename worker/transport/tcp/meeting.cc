#include "worker/transport/tcp/meeting.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/transport/tcp/tcp_listener.h"

namespace coordd {

Meeting::Stage Meeting::Fail(Stage stage, std::string why) {
  failure_ = std::move(why);
  return Turn(stage);
}

Meeting::Stage Meeting::Step() {
  if (stage_ == Stage::kConnecting) Connect();
  if (stage_ == Stage::kProving) Prove();
  if (stage_ == Stage::kAwaiting) Await();
  return stage_;
}

Meeting::Stage Meeting::Connect() {
  const int error = ConnectingError(socket_.get());
  if (error == 0) return Turn(Stage::kProving);
  return Fail(error == ECONNREFUSED ? Stage::kRefused : Stage::kEnded,
              absl::StrCat("connecting: ", strerror(error)));
}

Meeting::Stage Meeting::Prove() {
  switch (handshake_->Step()) {
    case TlsHandshake::Outcome::kWantsRead:
      wants_write_ = false;
      return stage_;
    case TlsHandshake::Outcome::kWantsWrite:
      wants_write_ = true;
      return stage_;
    case TlsHandshake::Outcome::kEnded:
      return Fail(Stage::kEnded, handshake_->failure());
    case TlsHandshake::Outcome::kFailed:
      return Fail(Stage::kFailed, handshake_->failure());
    case TlsHandshake::Outcome::kDone:
      break;
  }
  wants_write_ = false;
  if (encrypts_) {
    const std::optional<TlsHandshake::Secrets> secrets = handshake_->ExportSecrets();
    if (!secrets.has_value()) return Fail(Stage::kFailed, handshake_->failure());
    stream_ = std::make_unique<TcpStream>(std::move(socket_), secrets->sends, secrets->receives);
  } else {
    stream_ = std::make_unique<TcpStream>(std::move(socket_));
  }
  return Turn(connects_ ? Stage::kAwaiting : Stage::kProven);
}

Meeting::Stage Meeting::Await() {
  const absl::Span<std::byte> room = absl::MakeSpan(verdict_).subspan(verdict_bytes_);
  TcpStream::Got got = stream_->Read({}, room);
  if (got.is_over) return Fail(Stage::kEnded, std::move(got.why));
  if (got.others.size() > room.size()) return Fail(Stage::kFailed, "its first word is too long");
  if (!got.others.empty()) std::memmove(room.data(), got.others.data(), got.others.size());
  verdict_bytes_ += got.others.size();
  if (verdict_bytes_ < verdict_.size()) return stage_;
  const absl::StatusOr<FrameHeader> verdict = ParseHeader(verdict_);
  if (verdict.ok() && verdict->kind == FrameKind::kWelcome) return Turn(Stage::kMet);
  if (verdict.ok() && verdict->kind == FrameKind::kYield) return Turn(Stage::kYielded);
  return Fail(Stage::kFailed, "its first word is no greeting");
}

void Meeting::Answer(FrameKind verdict) {
  verdict_ = Encode({verdict, 0, 0});
  const iovec part = {verdict_.data(), verdict_.size()};
  // Nothing was sent before, so there is room for it.
  std::array<std::byte, FrameHeader::kBytes + kRecordOverheadBytes> room;
  const TcpStream::Moved moved = stream_->Write({&part, 1}, absl::MakeSpan(room));
  if (moved.bytes != verdict_.size() || stream_->has_unsent()) {
    Fail(Stage::kEnded, moved.is_over ? moved.why : "there is no room for a greeting");
  } else {
    Turn(verdict == FrameKind::kWelcome ? Stage::kMet : Stage::kYielded);
  }
}

}  // namespace coordd
