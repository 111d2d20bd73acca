#include "worker/transport/tcp/tcp_transport.h"

#include <algorithm>
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
// So many connections are read without asking first which of them have something; the others are
// asked after so many turns all the same.
constexpr size_t kReadUnasked = 4;
// Of so many turns one looks at what has come, which makes small collectives faster by a twelfth
// (bench/results.md). After so many in which nothing has moved all do: who sleeps between them
// would hear of it twice as late.
constexpr uint32_t kTurnsPerLook = 2, kBriskTurns = 128;
constexpr uint32_t kTurnsPerPoll = 16;
static_assert(kTurnsPerPoll % kTurnsPerLook == 0 && kTurnsPerClock % kTurnsPerLook == 0);
// Of one connection in one turn: others, and Abort, want theirs.
constexpr int kReadsPerTurn = 16, kWritesPerTurn = 16;
constexpr size_t kScratchBytes = MessageLink::kAsideBytesMax + FrameHeader::kBytes;
constexpr size_t kPartsPerWrite = 64;
// Of records that are encrypted at a time, and sent by one call: it stays in the core's caches.
constexpr size_t kSealingBytes = (size_t{128} << 10) + RecordWriter::kPayloadBytesMin;
static_assert(kSealingBytes >= RecordWriter::kRoomBytesMin);

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
  scratch_.resize(kScratchBytes);
  if (options_.encrypts) sealing_.resize(kSealingBytes);
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
  TcpAddress address{listener.address(), SecretHex(32), options_.encrypts, std::nullopt};
  if (probe_port_.has_value()) address.probe_port = probe_port_->address();
  const PeerMeetings::Options options{layout.self(),  layout.size(),      options_.encrypts,
                                      address.secret, address.probe_port, options_.turned_away};
  COORDD_RETURN_IF_ERROR(meetings_.Open(options, std::move(listener), [this](Rank rank) {
    const std::unique_ptr<Peer>& peer = peers_[static_cast<size_t>(ToInt(rank))];
    return peer == nullptr || (peer->stream == nullptr && peer->link.ended().ok());
  }));
  return store.Set(AddressKey(kTcpKeyPrefix, layout.self()), address.ToText(), deadline);
}

TcpTransport::Peer& TcpTransport::PeerOf(Rank rank) {
  std::unique_ptr<Peer>& peer = peers_.at(static_cast<size_t>(ToInt(rank)));
  if (peer == nullptr) {
    peer = std::make_unique<Peer>(rank, memory_);
    if (dropped_.ok()) {
      wanted_.push_back(peer.get());
    } else {
      peer->link.End(dropped_);
    }
  }
  return *peer;
}

TcpOperation& TcpTransport::NewOperation(Tag tag, size_t size_bytes) {
  TcpOperation& operation = memory_.NewOperation();
  operation.tag = tag.Encode();
  operation.size_bytes = size_bytes;
  return operation;
}

void TcpTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  Peer& peer = PeerOf(to);
  TcpOperation& operation = NewOperation(tag, bytes.size());
  operation.bytes = bytes.data();
  operation.landing = nullptr;
  operation.done = std::move(done);
  peer.link.Send(operation);
  WantsFlush(peer);
}

void TcpTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  TcpOperation& operation = NewOperation(tag, bytes.size());
  operation.landing = bytes.data();
  operation.done = std::move(done);
  StartReceive(from, operation);
}

void TcpTransport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) {
  TcpOperation& operation = NewOperation(tag, landing.size());
  operation.landing = landing.data();
  operation.taken = std::move(taken);
  StartReceive(from, operation);
}

void TcpTransport::StartReceive(Rank from, TcpOperation& operation) {
  Peer& peer = PeerOf(from);
  peer.link.Receive(operation);
  WantsFlush(peer);
}

void TcpTransport::WantsFlush(Peer& peer) {
  if (peer.is_to_flush || peer.stream == nullptr || peer.link.outbox().empty()) return;
  peer.is_to_flush = true;
  to_flush_.push_back(&peer);
}

bool TcpTransport::Progress() {
  if (store_ == nullptr) return false;
  if (aborted_.load(std::memory_order_acquire))
    DropEverything(absl::AbortedError("the transport was aborted"));
  bool moved = false;
  ++turns_.all;
  if (dropped_.ok()) {
    if (!wanted_.empty()) MeetWanted();
    moved |= FlushAll();
    if (IsToLook()) moved |= Poll();
    moved |= FlushAll();  // what was asked for
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
  return turns_.all % kTurnsPerLook == 0 || turns_.still >= kBriskTurns || blocked_ > 0 ||
         !to_read_.empty() || meetings_.is_busy();
}

// The next turn asks the clock and epoll.
void TcpTransport::LookAtPeers() { turns_.all = kTurnsPerClock - 1; }

int TcpTransport::Descriptor() {
  const bool has_more_to_do = !wanted_.empty() || !to_read_.empty() || !to_flush_.empty() ||
                              memory_.has_ended() || !dropped_.ok();
  return has_more_to_do || store_ == nullptr ? -1 : polls_.descriptor();
}

// May wait for the store.
void TcpTransport::MeetWanted() {
  for (Peer* const peer : std::exchange(wanted_, {})) {
    if (peer->stream != nullptr || !peer->link.ended().ok()) continue;  // it was sooner
    const absl::StatusOr<std::string> text =
        store_->Get(AddressKey(kTcpKeyPrefix, peer->rank), clock_.Now() + kAddressTimeout);
    const absl::StatusOr<TcpAddress> address =
        text.ok() ? TcpAddress::Parse(*text) : absl::StatusOr<TcpAddress>(text.status());
    if (!address.ok()) {
      Lose(*peer, Loss::kEnded, absl::StrCat("its TCP address: ", address.status().message()));
      continue;
    }
    peer->watched.AskAt(address->probe_port);
    meetings_.Connect(peer->rank, *address);
  }
}

bool TcpTransport::TakeNews() {
  if (!meetings_.has_news()) return false;
  for (PeerMeetings::Met& met : meetings_.TakeMet()) {
    Peer& peer = PeerOf(met.rank);
    if (!peer.link.ended().ok()) continue;
    if (met.probe_port.has_value()) peer.watched.AskAt(std::move(met.probe_port));
    peer.stream = std::move(met.stream);
    peer.address = std::move(met.address);
    peer.has_moved = true;
    peer.events = EPOLLIN;
    // It was polled for its meeting.
    polls_.Change(peer.stream->socket(),
                  PeerMeetings::kKeysEnd + static_cast<uint64_t>(ToInt(met.rank)), peer.events);
    connected_.push_back(&peer);
    if (peer.stream->has_buffered()) to_read_.push_back(&peer);  // which came with the verdict
    WantsFlush(peer);
  }
  for (const PeerMeetings::NotMet& not_met : meetings_.TakeNotMet()) {
    Peer& peer = PeerOf(not_met.rank);
    if (peer.stream == nullptr) Lose(peer, Loss::kEnded, not_met.why);
  }
  return true;
}

bool TcpTransport::Poll() {
  bool moved = false;
  for (Peer* const peer : std::exchange(to_read_, {})) moved |= Read(*peer);
  const bool few = connected_.size() <= kReadUnasked;
  for (size_t i = 0; few && i < connected_.size(); ++i) moved |= Read(*connected_[i]);
  // Whoever is lost leaves connected_, and another one takes its place: that has its turn later.
  if (few && blocked_ == 0 && !meetings_.is_busy() && turns_.all % kTurnsPerPoll != 0) return moved;
  std::array<epoll_event, 64> room;
  for (const epoll_event& event : polls_.Poll(absl::MakeSpan(room))) {
    const uint64_t key = event.data.u64;
    if (key < PeerMeetings::kKeysEnd) {
      meetings_.OnReady(key);
      continue;
    }
    Peer& peer = *peers_[key - PeerMeetings::kKeysEnd];
    if ((event.events & EPOLLOUT) != 0 && peer.stream != nullptr) {
      KeepEvents(peer, /*is_blocked=*/false);
      if (!std::exchange(peer.is_to_flush, true)) to_flush_.push_back(&peer);
    }
    if ((event.events & ~EPOLLOUT) != 0u) moved |= Read(peer);
  }
  meetings_.Tend();
  return TakeNews() || moved;
}

// Where what comes may be much, no more than a header is read that has no place yet.
absl::Span<std::byte> TcpTransport::RoomBeside(Peer& peer) {
  const FrameReader& reader = peer.link.reader();
  const bool sparing = !reader.target().empty() || peer.link.expects_much();
  return absl::MakeSpan(scratch_).first(sparing ? reader.header_left() : scratch_.size());
}

bool TcpTransport::Read(Peer& peer) {
  bool moved_any = false;
  for (int i = 0; peer.stream != nullptr; ++i) {
    if (i >= kReadsPerTurn) {
      // Of what is not at the socket any more epoll does not tell.
      if (peer.stream->has_buffered()) to_read_.push_back(&peer);
      break;
    }
    FrameReader& reader = peer.link.reader();
    TcpStream::Got got = peer.stream->Read(reader.target(), RoomBeside(peer));
    if (got.is_over) {
      Lose(peer, got.is_wrong ? Loss::kWrong : Loss::kEnded, std::move(got.why));
      return true;
    }
    if (got.has_moved) moved_any = peer.has_moved = true;
    if (got.placed > 0) reader.Filled(got.placed);
    const absl::Status taken = reader.Take(got.others);
    if (!taken.ok()) {
      Lose(peer, Loss::kWrong, absl::StrCat("it has sent ", taken.message()));
      return true;
    }
    WantsFlush(peer);
    if (got.was_all) break;
  }
  return moved_any;
}

bool TcpTransport::FlushAll() {
  bool moved = false;
  flushing_.swap(to_flush_);
  for (Peer* const peer : flushing_) {
    peer->is_to_flush = false;
    if (peer->stream != nullptr && (peer->events & EPOLLOUT) == 0) moved |= Flush(*peer);
  }
  flushing_.clear();
  return moved;
}

bool TcpTransport::Flush(Peer& peer) {
  bool moved_any = false;
  for (int i = 0; i < kWritesPerTurn; ++i) {
    std::array<iovec, kPartsPerWrite> parts;
    const size_t count = peer.link.outbox().Gather(absl::MakeSpan(parts));
    TcpStream::Moved moved;
    if (count > 0) {
      moved = peer.stream->Write({parts.data(), count}, absl::MakeSpan(sealing_));
    } else if (peer.stream->has_unsent()) {
      moved = peer.stream->Flush();
    } else {
      return moved_any;
    }
    if (moved.is_over) {
      // What it has said before its end is still to be read.
      Read(peer);
      if (peer.stream != nullptr) Lose(peer, Loss::kEnded, std::move(moved.why));
      return true;
    }
    peer.link.Wrote(moved.bytes, /*has_left=*/!peer.stream->has_unsent());
    moved_any |= moved.bytes > 0;
    size_t size = 0;
    for (size_t part = 0; part < count; ++part) size += parts[part].iov_len;
    const bool is_full = peer.stream->encrypts() ? peer.stream->has_unsent() : moved.bytes < size;
    if (is_full) {
      KeepEvents(peer, /*is_blocked=*/true);
      return moved_any;
    }
  }
  WantsFlush(peer);
  return moved_any;
}

void TcpTransport::KeepEvents(Peer& peer, bool is_blocked) {
  const uint32_t events = EPOLLIN | (is_blocked ? EPOLLOUT : 0u);
  if (events == peer.events) return;
  blocked_ += is_blocked ? 1 : -1;
  peer.events = events;
  polls_.Change(peer.stream->socket(),
                PeerMeetings::kKeysEnd + static_cast<uint64_t>(ToInt(peer.rank)), events);
}

// coordd may tell this rank of its peer's end before any operation does, which then ends by that:
// so what was seen here is in the log.
void TcpTransport::Lose(Peer& peer, Loss loss, std::string why) {
  const bool in_message = peer.stream != nullptr && !peer.link.reader().is_between_frames();
  if (loss == Loss::kEnded && in_message) absl::StrAppend(&why, ", in the middle of a message");
  if (peer.address.port != 0)
    absl::StrAppend(&why, " (its end is at ", peer.address.ToString(), ")");
  // Who has nothing more to say to the other goes without a word.
  if (loss != Loss::kEnded || in_message || peer.link.pending() > 0)
    meetings_.NoteLost(peer.rank, why);
  if (peer.stream != nullptr) {
    if ((peer.events & EPOLLOUT) != 0) --blocked_;
    peer.stream.reset();
    std::erase(connected_, &peer);
  } else {
    meetings_.GiveUp(peer.rank);
  }
  peer.link.End(loss == Loss::kSilent ? PeerSilent(peer.rank, why) : PeerLost(peer.rank, why));
}

void TcpTransport::WatchPeers() {
  const absl::Time now = clock_.Now();
  if (now < next_watch_) return;
  next_watch_ = now + kWatchInterval;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr || !peer->link.ended().ok()) continue;
    const WatchedPeer::News news{.moved = std::exchange(peer->has_moved, false),
                                 .waits = peer->link.pending() > 0,
                                 .connects = peer->stream == nullptr};
    const std::optional<std::string> silent = peer->watched.Look(news, now);
    if (silent.has_value()) Lose(*peer, Loss::kSilent, *silent);
  }
}

void TcpTransport::AskForHeld() {
  const absl::Time now = clock_.Now();
  for (Peer* const peer : connected_) {
    if (!peer->link.is_holding()) continue;
    const uint64_t proven = peer->link.proven_cost();
    if (std::exchange(peer->held_proven, proven) != proven) {
      peer->ask_at = now + kHeldPatience;
    } else if (now >= peer->ask_at) {
      peer->link.AskForHeld();
      WantsFlush(*peer);
    }
  }
}

// Connections stay open as long as the transport, and nothing goes over them: the others, who are
// told to stop as this rank was, are not to take it for the end of its process.
void TcpTransport::DropEverything(const absl::Status& status) {
  if (!dropped_.ok()) return;
  dropped_ = status;
  for (const std::unique_ptr<Peer>& peer : peers_)
    if (peer != nullptr) peer->link.End(status);
}

// Who closes what it has not read lets the system throw away what it has sent.
void TcpTransport::SayGoodbye() {
  const absl::Time deadline = clock_.Now() + kGoodbyeTimeout;
  auto is_unsent = [this] {
    return std::any_of(connected_.begin(), connected_.end(), [](const Peer* peer) {
      return !const_cast<Peer*>(peer)->link.outbox().empty() || peer->stream->has_unsent();
    });
  };
  while (is_unsent() && clock_.Now() < deadline) {
    FlushAll();
    Poll();
  }
  for (Peer* const peer : connected_) peer->stream->EndSending();
  for (size_t i = connected_.size(); i-- > 0;) Read(*connected_[i]);
}

}  // namespace coordd
