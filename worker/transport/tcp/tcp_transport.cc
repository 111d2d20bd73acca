#include "worker/transport/tcp/tcp_transport.h"

#include <sys/epoll.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/peer_addresses.h"
#include "worker/interfaces/peer_status.h"
#include "worker/transport/peers/network_interface.h"

namespace coordd {
namespace {

constexpr absl::string_view kTcpKeyPrefix = "tcp";
// A rank's address is in the store before the rank reports anything ready, so this is a round trip,
// unless the store is in trouble.
constexpr absl::Duration kAddressTimeout = absl::Seconds(10);
// How often it is looked at who keeps this rank waiting, and after how many turns the clock is.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr uint32_t kTurnsPerClock = 32;
// Who receives what was sent says so sooner, over any network. Who waits for something else first
// says nothing.
constexpr absl::Duration kHeldPatience = absl::Milliseconds(10);
// For what is still here to leave; a peer that hangs must not hold up this rank's end.
constexpr absl::Duration kGoodbyeTimeout = absl::Seconds(1);
// What a peer has sent before the end of one of its connections may still be on its way over
// others.
constexpr absl::Duration kLastWordsFor = absl::Seconds(1);
// Of so many turns one looks at what has come, which makes small collectives faster by a twelfth
// (bench/results.md). After so many in which nothing has moved all do: who sleeps between them
// would hear of it twice as late.
constexpr uint32_t kTurnsPerLook = 2, kBriskTurns = 128;
constexpr uint32_t kTurnsPerPoll = 16;
static_assert(kTurnsPerPoll % kTurnsPerLook == 0 && kTurnsPerClock % kTurnsPerLook == 0);
std::string LoopbackOrInterface() {
  const absl::StatusOr<NetworkInterface> interface = InterfaceBesideLoopback();
  return interface.ok() ? interface->address : "127.0.0.1";
}

}  // namespace

TcpTransport::~TcpTransport() {
  if (store_ == nullptr) return;
  if (dropped_.ok() && memory_.pending() == 0) SayGoodbye();
  DropEverything(absl::AbortedError("the transport was closed"));
  memory_.CallEnded();
}

absl::Status TcpTransport::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  peers_.resize(static_cast<size_t>(layout.size()));
  traffic_.Open(options_.connections, options_.encrypts, PeerMeetings::kKeysEnd,
                [this](TcpConnection& connection, End end, std::string why) {
                  OnEnd(connection, end, std::move(why));
                });
  COORDD_RETURN_IF_ERROR(polls_.Open());
  COORDD_RETURN_IF_ERROR(Listen(layout, store, deadline));
  store_ = &store;
  return absl::OkStatus();
}

absl::Status TcpTransport::Listen(const GroupLayout& layout, Store& store, absl::Time deadline) {
  const std::string at =
      options_.local_address.empty() ? LoopbackOrInterface() : options_.local_address;
  COORDD_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Open(at, options_.ports));
  const int32_t node = layout.node_of(layout.self());
  const int32_t index = ToInt(layout.self()) - ToInt(layout.first_rank_of(node));
  probe_port_ = ProbePort::OpenFor(at, options_.ports, index, layout.ranks_on(node));
  TcpAddress address{listener.address(), SecretHex(32), options_.encrypts, std::nullopt,
                     options_.connections};
  if (probe_port_.has_value()) address.probe_port = probe_port_->address();
  const PeerMeetings::Options options{layout.self(),        layout.size(),  options_.encrypts,
                                      options_.connections, address.secret, address.probe_port,
                                      options_.turned_away};
  COORDD_RETURN_IF_ERROR(meetings_.Open(options, std::move(listener),
                                        [this](const ConnectionId& id) { return IsWanted(id); }));
  return store.Set(AddressKey(kTcpKeyPrefix, layout.self()), address.ToText(), deadline);
}

// Those behind the first one are made by who has made that, in their order.
bool TcpTransport::IsWanted(const ConnectionId& id) const {
  const TcpPeer* const peer = peers_[static_cast<size_t>(ToInt(id.rank))].get();
  if (peer == nullptr) return id.number == 0;
  return peer->ended().ok() && !peer->ending.has_value() && id.number == peer->met &&
         (id.number == 0 || peer->has_called);
}

TcpPeer& TcpTransport::PeerOf(Rank rank) {
  std::unique_ptr<TcpPeer>& peer = peers_.at(static_cast<size_t>(ToInt(rank)));
  if (peer == nullptr) {
    peer = std::make_unique<TcpPeer>(rank, options_.connections, memory_);
    if (dropped_.ok()) {
      wanted_.push_back(peer.get());
    } else {
      peer->End(dropped_);
    }
  }
  return *peer;
}

// Both ends know these of a message, whatever its size: so they are still told where they do not
// agree about that.
TcpConnection& TcpTransport::ConnectionFor(Rank rank, Tag tag) {
  const int64_t several = options_.connections;
  const int64_t number = several == 1 ? 0 : (tag.part + tag.segment) % several;
  return PeerOf(rank).connection(static_cast<int32_t>(number));
}

TcpOperation& TcpTransport::NewOperation(Tag tag, size_t size_bytes) {
  TcpOperation& operation = memory_.NewOperation();
  operation.tag = tag.Encode();
  operation.size_bytes = size_bytes;
  return operation;
}

void TcpTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  TcpConnection& connection = ConnectionFor(to, tag);
  TcpOperation& operation = NewOperation(tag, bytes.size());
  operation.bytes = bytes.data();
  operation.landing = nullptr;
  operation.done = std::move(done);
  connection.link.Send(operation);
  traffic_.WantsFlush(connection);
}

void TcpTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  TcpOperation& operation = NewOperation(tag, bytes.size());
  operation.landing = bytes.data();
  operation.done = std::move(done);
  StartReceive(from, tag, operation);
}

void TcpTransport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) {
  TcpOperation& operation = NewOperation(tag, landing.size());
  operation.landing = landing.data();
  operation.taken = std::move(taken);
  StartReceive(from, tag, operation);
}

void TcpTransport::StartReceive(Rank from, Tag tag, TcpOperation& operation) {
  TcpConnection& connection = ConnectionFor(from, tag);
  connection.link.Receive(operation);
  traffic_.WantsFlush(connection);
}

bool TcpTransport::Progress() {
  if (store_ == nullptr) return false;
  if (aborted_.load(std::memory_order_acquire))
    DropEverything(absl::AbortedError("the transport was aborted"));
  bool moved = false;
  ++turns_.all;
  if (dropped_.ok()) {
    if (!wanted_.empty()) MeetWanted();
    moved |= traffic_.FlushAll();
    // Who has nothing better to do reads it: its sender may wait for that.
    traffic_.LeaveUnexpected(turns_.still < kBriskTurns);
    if (IsToLook()) moved |= Poll();
    moved |= traffic_.FlushAll();  // what was asked for
    if (turns_.all % kTurnsPerClock == 0 && memory_.pending() > 0) {
      WatchPeers();
      if (memory_.held() > 0) AskForHeld();
    }
  }
  moved |= memory_.has_ended();
  memory_.CallEnded();
  turns_.still = moved ? 0 : turns_.still + 1;
  return moved;
}

bool TcpTransport::IsToLook() const {
  return turns_.all % kTurnsPerLook == 0 || turns_.still >= kBriskTurns || traffic_.is_blocked() ||
         traffic_.has_read_ahead() || meetings_.is_busy();
}

// The next turn asks the clock and epoll.
void TcpTransport::LookAtPeers() { turns_.all = kTurnsPerClock - 1; }

int TcpTransport::Descriptor() {
  const bool has_more_to_do = !wanted_.empty() || traffic_.has_read_ahead() ||
                              traffic_.has_to_flush() || memory_.has_ended() || !dropped_.ok();
  return has_more_to_do || store_ == nullptr ? -1 : polls_.descriptor();
}

// May wait for the store.
void TcpTransport::MeetWanted() {
  for (TcpPeer* const peer : std::exchange(wanted_, {})) {
    if (peer->met > 0 || !peer->ended().ok()) continue;  // it was sooner
    const absl::StatusOr<std::string> text =
        store_->Get(AddressKey(kTcpKeyPrefix, peer->rank), clock_.Now() + kAddressTimeout);
    const absl::StatusOr<TcpAddress> address =
        text.ok() ? TcpAddress::Parse(*text) : absl::StatusOr<TcpAddress>(text.status());
    if (!address.ok()) {
      Lose(*peer, absl::StrCat("its TCP address: ", address.status().message()));
      continue;
    }
    peer->watched.AskAt(address->probe_port);
    meetings_.Connect(peer->rank, *address);
  }
}

bool TcpTransport::TakeNews() {
  if (!meetings_.has_news()) return false;
  for (PeerMeetings::Met& met : meetings_.TakeMet()) {
    TcpPeer& peer = PeerOf(met.id.rank);
    if (!peer.ended().ok() || peer.ending.has_value()) continue;
    if (met.probe_port.has_value()) peer.watched.AskAt(std::move(met.probe_port));
    TcpConnection& connection = peer.connection(met.id.number);
    connection.stream = std::move(met.stream);
    connection.address = std::move(met.address);
    peer.has_moved = true;
    peer.has_called = met.has_called;
    ++peer.met;
    traffic_.Add(connection);
  }
  for (const PeerMeetings::NotMet& not_met : meetings_.TakeNotMet()) {
    TcpPeer& peer = PeerOf(not_met.rank);
    if (!peer.is_met()) Lose(peer, not_met.why);
  }
  return true;
}

bool TcpTransport::Poll() {
  bool moved = traffic_.ReadUnasked();
  const bool suffices = traffic_.is_few() && !traffic_.is_blocked() && !meetings_.is_busy();
  if (suffices && turns_.all % kTurnsPerPoll != 0) return moved;
  std::array<epoll_event, 64> room;
  for (const epoll_event& event : polls_.Poll(absl::MakeSpan(room))) {
    const uint64_t key = event.data.u64;
    if (key < PeerMeetings::kKeysEnd) {
      meetings_.OnReady(key);
      continue;
    }
    const auto [rank, number] = TcpTraffic::ConnectionOf(key - PeerMeetings::kKeysEnd);
    moved |= traffic_.OnReady(peers_[rank]->connection(number), event.events);
  }
  meetings_.Tend();
  return TakeNews() || moved;
}

std::string TcpTransport::WhereItEnds(const TcpConnection& connection) const {
  if (connection.address.port == 0) return "";
  const std::string which =
      options_.connections == 1
          ? ""
          : absl::StrCat(", connection ", connection.number + 1, " of ", options_.connections);
  return absl::StrCat(" (its end is at ", connection.address.ToString(), which, ")");
}

// The others of a peer's connections end with the first one, but for what they have brought.
void TcpTransport::OnEnd(TcpConnection& connection, End end, std::string why) {
  TcpPeer& peer = connection.peer;
  const bool in_message = !connection.link.reader().is_between_frames();
  if (end == End::kEnded && in_message) absl::StrAppend(&why, ", in the middle of a message");
  absl::StrAppend(&why, WhereItEnds(connection));
  traffic_.Remove(connection);
  if (end == End::kWrong) return Lose(peer, why, /*is_told=*/true);
  if (!peer.ending.has_value()) {
    peer.ending = {std::move(why), in_message, clock_.Now() + kLastWordsFor};
    for (const auto& other : peer.all()) traffic_.EndSending(*other);
  }
  if (!peer.is_open()) Lose(peer, peer.ending->why, peer.ending->in_message);
}

// coordd may tell this rank of its peer's end before any operation does, which then ends by that:
// so what was seen here is in the log. Who has nothing more to say to the other goes without a
// word.
void TcpTransport::Lose(TcpPeer& peer, const std::string& why, bool is_told, bool is_silent) {
  if (is_told || peer.pending() > 0) meetings_.NoteLost(peer.rank, why);
  for (const auto& connection : peer.all()) traffic_.Remove(*connection);
  if (!peer.is_met()) meetings_.GiveUp(peer.rank);
  peer.End(is_silent ? PeerSilent(peer.rank, why) : PeerLost(peer.rank, why));
}

void TcpTransport::WatchPeers() {
  const absl::Time now = clock_.Now();
  if (now < next_watch_) return;
  next_watch_ = now + kWatchInterval;
  for (const std::unique_ptr<TcpPeer>& peer : peers_) {
    if (peer == nullptr || !peer->ended().ok()) continue;
    if (peer->ending.has_value() && now >= peer->ending->deadline) {
      Lose(*peer, peer->ending->why, peer->ending->in_message);
      continue;
    }
    const WatchedPeer::News news{.moved = std::exchange(peer->has_moved, false),
                                 .waits = peer->pending() > 0,
                                 .connects = !peer->is_met()};
    const std::optional<std::string> silent = peer->watched.Look(news, now);
    if (!silent.has_value()) continue;
    Lose(*peer, absl::StrCat(*silent, WhereItEnds(peer->connection(0))), /*is_told=*/true,
         /*is_silent=*/true);
  }
}

void TcpTransport::AskForHeld() {
  const absl::Time now = clock_.Now();
  for (TcpConnection* const connection : traffic_.connected()) {
    if (!connection->link.is_holding()) continue;
    const uint64_t proven = connection->link.proven_cost();
    if (std::exchange(connection->held_proven, proven) != proven) {
      connection->ask_at = now + kHeldPatience;
    } else if (now >= connection->ask_at) {
      connection->link.AskForHeld();
      traffic_.WantsFlush(*connection);
    }
  }
}

// Connections stay open as long as the transport, and nothing goes over them: the others, who are
// told to stop as this rank was, are not to take it for the end of its process.
void TcpTransport::DropEverything(const absl::Status& status) {
  if (!dropped_.ok()) return;
  dropped_ = status;
  for (const std::unique_ptr<TcpPeer>& peer : peers_)
    if (peer != nullptr) peer->End(status);
}

// Who closes what it has not read lets the system throw away what it has sent.
void TcpTransport::SayGoodbye() {
  const absl::Time deadline = clock_.Now() + kGoodbyeTimeout;
  traffic_.LeaveUnexpected(false);
  while (traffic_.has_unsent() && clock_.Now() < deadline) {
    traffic_.FlushAll();
    Poll();
  }
  const std::vector<TcpConnection*> connected = traffic_.connected();
  for (TcpConnection* const connection : connected) traffic_.EndSending(*connection);
  for (TcpConnection* const connection : connected) {
    while (traffic_.Read(*connection) && clock_.Now() < deadline) continue;
  }
}

}  // namespace coordd
