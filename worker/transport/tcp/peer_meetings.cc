#include "worker/transport/tcp/peer_meetings.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr uint64_t kListenerKey = 0;
// Of one turn, so that messages have theirs.
constexpr int kAcceptedPerTurn = 16;
constexpr absl::Duration kFirstPause = absl::Milliseconds(5), kPauseMax = absl::Seconds(1);
// For the connection of a peer who says that it has begun one.
constexpr absl::Duration kYieldPause = absl::Seconds(1);
// How long behind a meeting the peer's own connection, which it has given up, may come to light.
constexpr absl::Duration kCrossingFor = absl::Seconds(10);

}  // namespace

absl::Status PeerMeetings::Open(Options options, TcpListener listener, IsWanted is_wanted) {
  options_ = std::move(options);
  listener_ = std::move(listener);
  is_wanted_ = std::move(is_wanted);
  COORDD_ASSIGN_OR_RETURN(tls_, NewTlsContext());
  unspoken_.NoteRankAt(listener_.address().host);
  return polls_.Add(listener_.socket(), kListenerKey, EPOLLIN);
}

void PeerMeetings::Connect(Rank rank, const TcpAddress& address) {
  unspoken_.NoteRankAt(address.at.host);
  if (address.encrypts != options_.encrypts) {
    not_met_.push_back(
        {rank, absl::StrCat("COORDD_DATA_ENCRYPTION is ", address.encrypts ? "on" : "off",
                            " there and not here: all ranks must choose alike")});
  } else if (address.connections != options_.connections) {
    not_met_.push_back(
        {rank, absl::StrCat("COORDD_TCP_CONNECTIONS is ", address.connections, " on rank ",
                            ToInt(rank), " and ", options_.connections, " on rank ",
                            ToInt(options_.self), ": all ranks must choose alike")});
  } else {
    Begin({rank, 0}, address);
  }
}

void PeerMeetings::Begin(const ConnectionId& id, const TcpAddress& address) {
  Outgoing& outgoing = outgoing_[id];
  outgoing.address = address;
  outgoing.since = clock_.Now();
  outgoing.pause = kFirstPause;
  Attempt(id, outgoing);
}

void PeerMeetings::Attempt(const ConnectionId& id, Outgoing& outgoing) {
  int error = 0;
  OwnedFd socket = BeginConnecting(outgoing.address.at, &error);
  if (!socket.valid()) return TryLater(id, outgoing, absl::StrCat("connecting: ", strerror(error)));
  const LinkIdentity identity{options_.self, id.rank, options_.encrypts, options_.probe_port,
                              id.number};
  std::string text = identity.ToText();
  const LinkKey key = DeriveKey(outgoing.address.secret, text);
  TlsHandshake handshake = TlsHandshake::Connecting(tls_.get(), socket.get(), std::move(text), key);
  outgoing.key = NewKey();
  outgoing.events = EPOLLIN | EPOLLOUT;
  if (const absl::Status added = polls_.Add(socket.get(), outgoing.key, outgoing.events);
      !added.ok()) {
    return TryLater(id, outgoing, std::string(added.message()));
  }
  outgoing_keys_[outgoing.key] = id;
  outgoing.meeting = std::make_unique<Meeting>(std::move(socket), std::move(handshake),
                                               /*connects=*/true, options_.encrypts);
}

void PeerMeetings::TryLater(const ConnectionId& id, Outgoing& outgoing, const std::string& why) {
  outgoing_keys_.erase(outgoing.key);
  outgoing.meeting.reset();
  const absl::Time now = clock_.Now();
  outgoing.next = now + outgoing.pause;
  outgoing.pause = std::min(2 * outgoing.pause, kPauseMax);
  if (now - outgoing.since < kTryFor) return;
  not_met_.push_back({id.rank, absl::StrCat(why, ", at ", outgoing.address.at.ToString())});
  outgoing_.erase(id);
}

void PeerMeetings::Forget(const ConnectionId& id) {
  const auto found = outgoing_.find(id);
  if (found == outgoing_.end()) return;
  outgoing_keys_.erase(found->second.key);
  outgoing_.erase(found);
}

void PeerMeetings::GiveUp(Rank rank) {
  for (int32_t number = 0; number < options_.connections; ++number) Forget({rank, number});
}

void PeerMeetings::KeepEvents(const Meeting& meeting, uint64_t key, uint32_t& events) {
  const uint32_t wanted = EPOLLIN | (meeting.wants_write() ? EPOLLOUT : 0u);
  if (wanted == events) return;
  events = wanted;
  polls_.Change(meeting.socket(), key, events);
}

void PeerMeetings::StepOutgoing(const ConnectionId& id, Outgoing& outgoing) {
  Meeting& meeting = *outgoing.meeting;
  switch (meeting.Step()) {
    case Meeting::Stage::kMet:
      return OutgoingMet(id, outgoing);
    case Meeting::Stage::kYielded:
      // The peer is there.
      outgoing.since = clock_.Now();
      outgoing.pause = kYieldPause;
      return TryLater(id, outgoing, "it has yielded");
    case Meeting::Stage::kEnded:
      return TryLater(id, outgoing, meeting.failure());
    case Meeting::Stage::kRefused:
    case Meeting::Stage::kFailed:
      not_met_.push_back(
          {id.rank, absl::StrCat(meeting.failure(), ", at ", outgoing.address.at.ToString())});
      return Forget(id);
    default:
      return KeepEvents(meeting, outgoing.key, outgoing.events);
  }
}

void PeerMeetings::OutgoingMet(const ConnectionId& id, Outgoing& outgoing) {
  const TcpAddress address = outgoing.address;
  met_.push_back(
      {id, outgoing.meeting->TakeStream(), /*has_called=*/false, std::nullopt, address.at});
  NoteMet(id.rank, address.at);
  const ConnectionId next{id.rank, id.number + 1};
  Forget(id);
  if (next.number < options_.connections) Begin(next, address);
}

void PeerMeetings::OnReady(uint64_t key) {
  if (key == kListenerKey) return AcceptCallers();
  if (const auto caller = callers_.find(key); caller != callers_.end())
    return StepCaller(key, caller->second);
  const auto found = outgoing_keys_.find(key);
  if (found == outgoing_keys_.end()) return;
  const ConnectionId id = found->second;
  StepOutgoing(id, outgoing_.at(id));
}

void PeerMeetings::AcceptCallers() {
  for (int i = 0; i < kAcceptedPerTurn; ++i) {
    TcpListener::Caller accepted = listener_.Accept();
    if (!accepted.socket.valid()) return;
    MakeRoom(accepted.address);
    TlsHandshake handshake =
        TlsHandshake::Accepting(tls_.get(), accepted.socket.get(),
                                [this](absl::string_view identity) { return KeyOf(identity); });
    const uint64_t key = NewKey();
    if (!polls_.Add(accepted.socket.get(), key, EPOLLIN).ok()) return;
    Caller& caller = callers_[key];
    caller.meeting = std::make_unique<Meeting>(std::move(accepted.socket), std::move(handshake),
                                               /*connects=*/false, options_.encrypts);
    caller.address = accepted.address;
    caller.events = EPOLLIN;
    caller.since = clock_.Now();
  }
}

// Of the address that has the most, the oldest that has not said who it is, else the oldest: who
// belongs here says it at once.
void PeerMeetings::MakeRoom(const HostPort& for_whom) {
  if (callers_.size() < kCallersMax) return;
  std::map<absl::string_view, size_t> callers_at = {{for_whom.host, 1}};
  for (const auto& [key, caller] : callers_) ++callers_at[caller.address.host];
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const size_t most = std::max_element(callers_at.begin(), callers_at.end(), less)->second;
  auto goes = callers_.end();
  for (auto it = callers_.begin(); it != callers_.end(); ++it) {
    if (callers_at[it->second.address.host] < most) continue;
    if (goes == callers_.end()) goes = it;
    if (!it->second.meeting->identity().empty()) continue;
    goes = it;
    break;
  }
  if (goes == callers_.end()) goes = callers_.begin();  // each address has one
  TurnAway(goes->second, "there are too many that have not proved who they are");
  callers_.erase(goes);
}

// Only takes note of who it is said to be: that is proved afterwards, or not.
std::optional<LinkKey> PeerMeetings::KeyOf(absl::string_view text) const {
  const absl::StatusOr<LinkIdentity> identity = LinkIdentity::Parse(text);
  if (!identity.ok() || identity->to != options_.self || identity->from == options_.self ||
      ToInt(identity->from) >= options_.world_size || identity->encrypts != options_.encrypts ||
      identity->number >= options_.connections) {
    return std::nullopt;
  }
  return DeriveKey(options_.secret, text);
}

void PeerMeetings::StepCaller(uint64_t key, Caller& caller) {
  Meeting& meeting = *caller.meeting;
  switch (meeting.Step()) {
    case Meeting::Stage::kProven:
      Decide(caller);
      break;
    case Meeting::Stage::kEnded:
      NoteEnd(caller);
      break;
    case Meeting::Stage::kFailed:
      TurnAway(caller, meeting.failure());
      break;
    default:
      return KeepEvents(meeting, key, caller.events);
  }
  callers_.erase(key);
}

// Nothing that was wrong was said. A rank whose own connection has come to stay ends the other one
// anywhere, as does one that is ended. Whoever has heard what a rank has said at its beginning can
// repeat that and no more, at any time, from another host.
void PeerMeetings::NoteEnd(const Caller& caller) {
  if (!caller.meeting->has_heard()) return unspoken_.Add(caller.address, clock_.Now());
  const absl::StatusOr<LinkIdentity> identity = LinkIdentity::Parse(caller.meeting->identity());
  if (identity.ok() && IsOfACrossing(*identity, caller)) return;
  if (identity.ok() && unspoken_.HasRanks(caller.address.host)) return;
  TurnAway(caller, caller.meeting->failure());
}

bool PeerMeetings::IsOfACrossing(const LinkIdentity& identity, const Caller& caller) const {
  if (outgoing_.contains({identity.from, 0})) return true;
  const auto met = met_at_.find(identity.from);
  return met != met_at_.end() && caller.since < met->second + kCrossingFor;
}

void PeerMeetings::Decide(Caller& caller) {
  const absl::StatusOr<LinkIdentity> identity = LinkIdentity::Parse(caller.meeting->identity());
  if (!identity.ok()) return;
  const ConnectionId id{identity->from, identity->number};
  if (!is_wanted_(id)) return;  // there was one already,
  for (const Met& met : met_)
    if (met.id == id) return;  // or is since this turn
  if (outgoing_.contains(id) && options_.self < id.rank)
    return caller.meeting->Answer(FrameKind::kYield);
  caller.meeting->Answer(FrameKind::kWelcome);
  if (caller.meeting->stage() != Meeting::Stage::kMet) return;
  Forget(id);
  met_.push_back({id, caller.meeting->TakeStream(), /*has_called=*/true, identity->probe_port,
                  caller.address});
  NoteMet(id.rank, caller.address);
}

void PeerMeetings::NoteMet(Rank rank, const HostPort& address) {
  met_at_[rank] = clock_.Now();
  unspoken_.NoteRankAt(address.host);
}

void PeerMeetings::NoteLost(Rank rank, absl::string_view why) {
  const std::optional<std::string> more = lost_limit_.Pass(clock_.Now());
  if (!more.has_value()) return;
  COORDD_LOG(kWarning, "rank ", ToInt(options_.self), " has lost rank ", ToInt(rank), ": ", why,
             *more);
}

void PeerMeetings::TurnAway(const Caller& caller, absl::string_view why) {
  NoteStranger(caller.address, why, caller.meeting->identity());
}

void PeerMeetings::NoteStranger(const HostPort& from, absl::string_view why,
                                absl::string_view claim) {
  if (options_.turned_away != nullptr)
    options_.turned_away->fetch_add(1, std::memory_order_relaxed);
  const std::optional<std::string> more = log_limit_.Pass(clock_.Now());
  if (!more.has_value()) return;
  COORDD_LOG(kWarning, "a connection from ", from.ToString(), " to rank ", ToInt(options_.self),
             "'s port for other ranks was ended, and nothing believed: ", why,
             claim.empty() ? "" : absl::StrCat(" (without a proof it has said: ", claim, ")"),
             *more);
}

void PeerMeetings::Tend() {
  if (!is_busy() && unspoken_.empty()) return;
  const absl::Time now = clock_.Now();
  while (!callers_.empty() && now - callers_.begin()->second.since >= kProveWithin) {
    const bool has_said = !callers_.begin()->second.meeting->identity().empty();
    TurnAway(callers_.begin()->second,
             has_said ? "it has not proved who it is" : "it has not said who it is");
    callers_.erase(callers_.begin());
  }
  for (const HostPort& from : unspoken_.TakeStrangers(now))
    NoteStranger(from, "it was closed without a word, and no rank is known at its address", "");
  std::vector<ConnectionId> due;
  for (const auto& [id, outgoing] : outgoing_)
    if (outgoing.meeting == nullptr && outgoing.next <= now) due.push_back(id);
  for (const ConnectionId& id : due) Attempt(id, outgoing_.at(id));
}

}  // namespace coordd
