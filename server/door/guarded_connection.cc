#include "server/door/guarded_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/door/socket_progress.h"

namespace coordd {
namespace {

// What one connection moves each way before others have their turn.
constexpr int kPiecesPerTurn = 4;
// gRPC has ended, or was told all there is: how long what is left may take.
constexpr absl::Duration kEndsWithin = absl::Seconds(5);

}  // namespace

void GuardedConnection::Rest::Keep(absl::string_view rest) {
  bytes.assign(rest.data(), rest.size());
  sent = 0;
}

void GuardedConnection::Rest::Sent(size_t size) {
  sent += size;
  if (sent < bytes.size()) return;
  bytes = std::string();  // an idle connection keeps no memory
  sent = 0;
}

GuardedConnection::GuardedConnection(OwnedFd client, uint64_t cookie, std::string peer,
                                     std::unique_ptr<TlsStream> tls, absl::Time over_by)
    : cookie_(cookie),
      peer_(std::move(peer)),
      client_(std::move(client)),
      stream_(tls != nullptr ? nullptr : PlainStream(client_.get())),
      tls_(tls.get()),
      over_by_(over_by) {
  if (tls != nullptr) stream_ = std::move(tls);
}

bool GuardedConnection::Begin() {
  const ClientStream::Outcome outcome = stream_->Begin();
  wants_write_ = outcome == ClientStream::Outcome::kWantsWrite;
  if (outcome == ClientStream::Outcome::kDone) return true;
  if (outcome != ClientStream::Outcome::kWantsRead && !wants_write_) ended_ = true;
  return false;
}

void GuardedConnection::ServeBy(OwnedFd grpc, std::string grpc_peer,
                                std::shared_ptr<SharedBudget> calls, NamePlaces::Place place,
                                absl::Time now) {
  grpc_ = std::move(grpc);
  grpc_peer_ = std::move(grpc_peer);
  talk_.emplace(
      Talk{.client = FrameGuard(FrameBounds(), now, std::move(calls)), .place = std::move(place)});
  over_by_ = absl::InfiniteFuture();
  has_more_ = true;
}

void GuardedConnection::RefuseBy(const absl::Status& why, absl::Time over_by) {
  refusal_.emplace(why);
  over_by_ = over_by;
  has_more_ = true;
}

GuardedConnection::Interest GuardedConnection::interest() const {
  Interest interest;
  const bool begins = !talk_.has_value() && !refusal_.has_value();
  if (begins || (to_grpc_.empty() && !client_ended_)) interest.client |= EPOLLIN;
  if (wants_write_ || !to_client_.empty()) interest.client |= EPOLLOUT;
  if (!talk_.has_value()) return interest;
  if (to_client_.empty() && !grpc_ended_) interest.grpc |= EPOLLIN;
  // A client that reads nothing is not kept for that.
  if (!to_client_.empty() && !grpc_gone_) interest.grpc |= EPOLLRDHUP;
  if (!to_grpc_.empty()) interest.grpc |= EPOLLOUT;
  return interest;
}

void GuardedConnection::Move(const Ready& ready, Piece& piece, absl::Time now) {
  // What was not read because the other side was full is read as soon as that has room.
  const bool from_client = ready.client || !to_grpc_.empty() || has_more_;
  const bool from_grpc = ready.grpc || !to_client_.empty();
  has_more_ = false;
  if (from_client) wants_write_ = false;
  if (ready.client_gone) ended_ = true;
  if (ready.grpc_gone && !std::exchange(grpc_gone_, true)) EndsBy(now + kEndsWithin);
  if (!ended_) Flush();
  if (!ended_ && from_client) FromClient(piece, now);
  if (!ended_ && from_grpc && talk_.has_value()) FromGrpc(piece, now);
  if (!ended_) EndWhatIsSaid(now);
}

void GuardedConnection::Flush() {
  while (!to_grpc_.empty() && !ended_) {
    const size_t sent = SendToGrpc(to_grpc_.view());
    if (sent == 0) break;
    to_grpc_.Sent(sent);
  }
  while (!to_client_.empty() && !ended_) {
    const ClientStream::Moved moved = stream_->Write(to_client_.view());
    if (moved.outcome == ClientStream::Outcome::kWantsWrite) break;
    Note(moved.outcome);
    if (moved.outcome != ClientStream::Outcome::kDone) break;
    to_client_.Sent(moved.bytes);
  }
}

void GuardedConnection::FromClient(Piece& piece, absl::Time now) {
  for (int i = 0; i < kPiecesPerTurn; ++i) {
    if (ended_ || client_ended_ || !to_grpc_.empty()) return;
    const ClientStream::Moved moved = stream_->Read(piece.data(), piece.size());
    Note(moved.outcome);
    if (tls_ != nullptr && talk_.has_value() && !tls_->flood().empty())
      violation_ = absl::ResourceExhaustedError(tls_->flood());
    if (moved.outcome != ClientStream::Outcome::kDone) return;
    TakeFromClient({piece.data(), moved.bytes}, now);
    // Of what a socket holds it tells again.
    if (!stream_->HasMore()) return;
  }
  has_more_ = to_grpc_.empty();
}

void GuardedConnection::TakeFromClient(absl::string_view bytes, absl::Time now) {
  if (refusal_.has_value()) {
    if (!refusal_->done()) ToClient(refusal_->Take(bytes));
    return;
  }
  violation_ = talk_->client.Take(bytes, now);
  if (!violation_.ok()) {
    ended_ = true;
    return;
  }
  ToGrpc(bytes);
}

void GuardedConnection::ToGrpc(absl::string_view bytes) {
  const size_t sent = SendToGrpc(bytes);
  if (sent < bytes.size()) to_grpc_.Keep(bytes.substr(sent));
}

size_t GuardedConnection::SendToGrpc(absl::string_view bytes) {
  const ssize_t sent = send(grpc_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return static_cast<size_t>(sent);
  if (errno == EAGAIN || errno == EINTR) return 0;
  // What gRPC has said before it closed is still to be told. Nothing else may be lost on the way.
  if (errno != EPIPE && errno != ECONNRESET) ended_ = true;
  return bytes.size();
}

void GuardedConnection::FromGrpc(Piece& piece, absl::Time now) {
  for (int i = 0; i < kPiecesPerTurn; ++i) {
    if (ended_ || grpc_ended_ || !to_client_.empty()) return;
    const ssize_t got = recv(grpc_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      grpc_gone_ = grpc_ended_ = true;
      talk_->grpc_ended_first = !client_ended_ && !HasEnded(client_.get());
      EndsBy(now + kEndsWithin);
      return;
    }
    const absl::string_view said(piece.data(), static_cast<size_t>(got));
    talk_->client.Answered(said.size());
    talk_->grpc.Take(said, [this](const FrameHead& frame) { talk_->client.Said(frame); });
    ToClient(said);
    if (static_cast<size_t>(got) < piece.size()) return;
  }
}

std::string GuardedConnection::GrpcsReason() const {
  if (!talk_.has_value() || !talk_->grpc_ended_first) return "";
  if (!talk_->grpc.complaint().empty()) return talk_->grpc.complaint();
  // A client that has said goodbye waits for just that.
  const bool as_agreed = talk_->grpc.said() || talk_->client.said_goodbye();
  if (as_agreed) return "";
  const uint64_t unanswered = talk_->client.unanswered_pings();
  // gRPC's clients read only while they have a call: one that has none answers no ping, and makes
  // another connection with its next call. That is the end of what nobody needed.
  if (unanswered > 0 && !talk_->client.had_a_call_then()) return "";
  if (talk_->client.answered_too_late()) return "";
  return unanswered == 0
             ? "no reason, and had its pings answered: it takes no such HTTP/2"
             : absl::StrCat("no reason, while ", unanswered,
                            " of its pings had no answer: the client was stopped, or its machine "
                            "or the network is too slow");
}

void GuardedConnection::ToClient(absl::string_view bytes) {
  while (!bytes.empty()) {
    // What waits already goes first.
    ClientStream::Moved moved = {ClientStream::Outcome::kWantsWrite};
    if (to_client_.empty()) moved = stream_->Write(bytes);
    if (moved.outcome == ClientStream::Outcome::kWantsWrite) {
      if (to_client_.empty()) {
        to_client_.Keep(bytes);
      } else {
        to_client_.bytes.append(bytes.data(), bytes.size());
      }
      return;
    }
    Note(moved.outcome);
    if (moved.outcome != ClientStream::Outcome::kDone) return;
    bytes.remove_prefix(moved.bytes);
  }
}

void GuardedConnection::EndWhatIsSaid(absl::Time now) {
  if (client_ended_ && to_grpc_.empty() && talk_.has_value() &&
      over_by_ == absl::InfiniteFuture()) {
    shutdown(grpc_.get(), SHUT_WR);
    EndsBy(now + kEndsWithin);
  }
  const bool said = to_client_.empty() && (grpc_ended_ || client_ended_);
  if (!said || (!grpc_ended_ && talk_.has_value())) return;
  stream_->End();
  ended_ = true;
}

void GuardedConnection::EndsBy(absl::Time by) { over_by_ = std::min(over_by_, by); }

void GuardedConnection::Note(ClientStream::Outcome outcome) {
  switch (outcome) {
    case ClientStream::Outcome::kWantsWrite:
      wants_write_ = true;
      break;
    case ClientStream::Outcome::kEnded:
      client_ended_ = true;
      break;
    case ClientStream::Outcome::kFailed:
      ended_ = true;
      break;
    default:
      break;
  }
}

}  // namespace coordd
