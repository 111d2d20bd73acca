#include "worker/ucx_transport.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/peer_addresses.h"
#include "worker/peer_probe.h"
#include "worker/peer_status.h"
#include "worker/peer_watch.h"
#include "worker/ucx_context.h"

namespace coordd {
namespace {

constexpr absl::string_view kUcxKeyPrefix = "ucx";
constexpr int kTagBits = 40;
constexpr int32_t kMaxRanks = 1 << 24;

// A rank's address is in the store before the rank reports anything ready, so this is a round trip,
// unless the store is in trouble.
constexpr absl::Duration kAddressTimeout = absl::Seconds(10);
// For buffered bytes and goodbyes to leave; a peer that hangs must not hold up this rank's end.
constexpr absl::Duration kFlushTimeout = absl::Seconds(1);
// For what UCX has still to let go of after it was told to drop everything: no waiting is involved.
constexpr absl::Duration kDropTimeout = absl::Seconds(2);

// How often it is looked at who keeps this rank waiting, and after how many turns the clock is.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr uint32_t kTurnsPerClock = 32;

// Rounds of UCX in one Progress: others, and Abort, want their turn.
constexpr int kProgressPerTurn = 32;

uint64_t UcxTag(Rank sender, Tag tag) {
  return (static_cast<uint64_t>(ToInt(sender)) << kTagBits) | tag.Encode();
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxFunctions& ucx, UcxTransportOptions options, Clock& clock)
      : ucx_(ucx), options_(std::move(options)), clock_(clock) {}
  ~UcxTransport() override;

  absl::string_view name() const override { return "ucx"; }
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) override;
  bool Progress() override;
  void Abort() override { aborted_.store(true, std::memory_order_release); }

 private:
  struct Operation;
  struct Peer {
    UcxTransport* transport = nullptr;
    Rank rank;
    ucp_ep_h endpoint = nullptr;         // nullptr: not made yet, or closed
    void* connecting = nullptr;          // request of the first flush; nullptr: none is pending
    std::deque<Operation*> held;         // Sends until it is connected
    absl::Status lost;                   // OK: the peer is there
    std::optional<HostPort> probe_port;  // none: nobody can ask for it
    std::optional<PeerProbe> probe;      // the one under way
    PeerWatch watch;
    int64_t ended = 0, ended_before = 0;  // operations, now and at the last look
    bool end_handled = false;  // of a lost peer: its endpoint is closed, its receives cancelled
  };
  struct Operation {
    UcxTransport* transport = nullptr;
    Peer* peer = nullptr;
    bool is_receive = false;
    uint64_t tag = 0;
    const std::byte* bytes = nullptr;  // of a Send
    size_t size_bytes = 0;
    Done done;
    void* request = nullptr;
    std::optional<absl::Status> ended_early;
    std::list<Operation>::iterator self;
  };

  Peer& PeerOf(Rank rank);
  void MakeEndpoint(Peer& peer);
  Operation& NewOperation(Peer& peer, bool is_receive, uint64_t tag,
                          absl::Span<const std::byte> bytes, Done done);
  void StartSend(Operation& operation);
  void StartConnecting(Peer& peer);
  void SendHeld(Peer& peer);
  ucp_request_param_t ParamsFor(Operation& operation) const;
  void Finish(Operation& operation, absl::Status status);
  absl::Status StatusOf(const Operation& operation, ucs_status_t status) const;
  absl::Status ReceivedStatus(const Operation& operation, ucs_status_t status, size_t length) const;
  void HandleLostPeers();
  std::optional<ProbePort> OpenProbePort(const GroupLayout& layout) const;
  void WatchPeers();
  void Watch(Peer& peer, bool waits, absl::Time now);
  void CancelReceives(const Peer* peer);  // nullptr: of all peers
  void CloseEndpoint(Peer& peer, bool force);
  void DropEverything(absl::Status status);
  // Progresses until `condition` or for `timeout`.
  template <typename Condition>
  void ProgressUntil(Condition condition, absl::Duration timeout);
  void CallFinished();

  static void OnConnected(void* request, ucs_status_t status, void* user_data);
  static void OnSent(void* request, ucs_status_t status, void* user_data);
  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* message,
                         void* user_data);
  static void OnEndpointError(void* user_data, ucp_ep_h endpoint, ucs_status_t status);

  // Constant after construction.
  const UcxFunctions ucx_;
  const UcxTransportOptions options_;
  Clock& clock_;

  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Touched by the owner's thread.
  Rank self_;
  Store* store_ = nullptr;
  absl::Status dropped_;                // OK: alive; else the end of all operations
  std::map<Rank, Peer> peers_;          // those that anything was exchanged with; stable addresses
  bool peer_lost_ = false;              // one that HandleLostPeers has not seen yet
  std::vector<Peer*> newly_connected_;  // their held Sends are next
  std::list<Operation> pending_;
  std::vector<void*> closing_;  // requests of endpoints that are being closed
  std::vector<std::pair<Done, absl::Status>> finished_;  // `done`s for the next Progress
  std::optional<ProbePort> probe_port_;                  // of this rank
  uint32_t turns_ = 0;                                   // of Progress
  absl::Time next_watch_ = absl::InfinitePast();
  UcxContext context_;  // last: it ends first, and its callbacks reach what stands above
};

UcxTransport::~UcxTransport() {
  if (context_.worker() == nullptr) return;
  DropEverything(absl::AbortedError("the transport was closed"));
  ProgressUntil([this] { return pending_.empty(); }, kDropTimeout);
  ProgressUntil(
      [this] {
        return std::none_of(peers_.begin(), peers_.end(),
                            [](const auto& entry) { return entry.second.connecting != nullptr; });
      },
      kFlushTimeout);
  for (auto& [rank, peer] : peers_) CloseEndpoint(peer, /*force=*/!peer.lost.ok());
  ProgressUntil([this] { return closing_.empty(); }, kFlushTimeout);
  // What is still under way may call nobody from here on: its request takes its callback along.
  for (auto& [rank, peer] : peers_)
    if (peer.connecting != nullptr) ucx_.request_free(peer.connecting);
  while (!pending_.empty()) Finish(pending_.front(), dropped_);
  for (void* request : closing_) ucx_.request_free(request);
  context_.End(clock_);
  CallFinished();
}

absl::Status UcxTransport::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  if (layout.size() > kMaxRanks) {
    return absl::ResourceExhaustedError(
        absl::StrCat(layout.size(), " ranks, a UCX tag has room for ", kMaxRanks));
  }
  self_ = layout.self();
  store_ = &store;
  COORDD_ASSIGN_OR_RETURN(context_, UcxContext::Open(ucx_, options_, layout));
  COORDD_ASSIGN_OR_RETURN(std::string address, context_.Address());
  probe_port_ = OpenProbePort(layout);
  if (probe_port_.has_value()) address = WithProbePort(std::move(address), probe_port_->address());
  return store.Set(AddressKey(kUcxKeyPrefix, self_), std::move(address), deadline);
}

// Where it is known which way UCX's messages go; within a range of ports, at its end, where there
// is room beyond those that UCX needs.
std::optional<ProbePort> UcxTransport::OpenProbePort(const GroupLayout& layout) const {
  const Environment& environment = options_.environment;
  if (options_.local_address.empty() || environment.contains("UCX_NET_DEVICES") ||
      environment.contains("UCX_TLS")) {
    return std::nullopt;
  }
  int32_t port = 0;
  if (options_.ports.has_value()) {
    const int32_t node = layout.node_of(self_);
    if (options_.ports->size() < 2 * layout.ranks_on(node)) return std::nullopt;
    port = options_.ports->last - (ToInt(self_) - ToInt(layout.first_rank_of(node)));
  }
  absl::StatusOr<ProbePort> opened =
      ProbePort::Open(options_.local_address, static_cast<uint16_t>(port));
  if (!opened.ok()) return std::nullopt;  // others do without it
  return *std::move(opened);
}

UcxTransport::Peer& UcxTransport::PeerOf(Rank rank) {
  auto [entry, added] = peers_.try_emplace(rank);
  if (added) {
    entry->second.transport = this;
    entry->second.rank = rank;
    if (dropped_.ok()) MakeEndpoint(entry->second);
  }
  return entry->second;
}

void UcxTransport::MakeEndpoint(Peer& peer) {
  const absl::StatusOr<std::string> address =
      store_->Get(AddressKey(kUcxKeyPrefix, peer.rank), clock_.Now() + kAddressTimeout);
  if (!address.ok()) {
    peer.lost = PeerLost(peer.rank, absl::StrCat("its UCX address: ", address.status().message()));
    return;
  }
  // UCX does not look beyond the end of what it has packed.
  peer.probe_port = ProbePortOf(*address);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address->data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxTransport::OnEndpointError, &peer};
  const ucs_status_t status = ucx_.ep_create(context_.worker(), &params, &peer.endpoint);
  if (status == UCS_OK) return StartConnecting(peer);
  peer.endpoint = nullptr;
  peer.lost = PeerLost(peer.rank, ucx_.Error("ucp_ep_create", status).message());
}

// UCX up to 1.13 ends the whole process (an assertion in wireup_ep.c) when a connection breaks
// while endpoints with queued messages still get to know each other. So nothing is sent, and no
// endpoint is dropped by Abort, before that is over, which the end of a flush tells.
void UcxTransport::StartConnecting(Peer& peer) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxTransport::OnConnected;
  params.user_data = &peer;
  const ucs_status_ptr_t request = ucx_.ep_flush_nbx(peer.endpoint, &params);
  if (UCS_PTR_IS_PTR(request)) {
    peer.connecting = request;
  } else if (UCS_PTR_IS_ERR(request)) {
    OnEndpointError(&peer, peer.endpoint, UCS_PTR_STATUS(request));
  }
}

void UcxTransport::OnConnected(void* request, ucs_status_t status, void* user_data) {
  Peer& peer = *static_cast<Peer*>(user_data);
  peer.connecting = nullptr;
  peer.transport->ucx_.request_free(request);
  if (status != UCS_OK) return OnEndpointError(user_data, peer.endpoint, status);
  peer.transport->newly_connected_.push_back(&peer);
}

void UcxTransport::SendHeld(Peer& peer) {
  std::deque<Operation*> held;
  held.swap(peer.held);
  for (Operation* operation : held) StartSend(*operation);
}

UcxTransport::Operation& UcxTransport::NewOperation(Peer& peer, bool is_receive, uint64_t tag,
                                                    absl::Span<const std::byte> bytes, Done done) {
  Operation& operation = pending_.emplace_back();
  operation = {this,         &peer,           is_receive, tag, bytes.data(),
               bytes.size(), std::move(done), nullptr,    {},  {}};
  operation.self = std::prev(pending_.end());
  return operation;
}

ucp_request_param_t UcxTransport::ParamsFor(Operation& operation) const {
  ucp_request_param_t params = {};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.user_data = &operation;
  return params;
}

void UcxTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  Peer& peer = PeerOf(to);
  Operation& operation =
      NewOperation(peer, /*is_receive=*/false, UcxTag(self_, tag), bytes, std::move(done));
  // Behind those that are held already, so that the order stays.
  if (peer.connecting != nullptr || !peer.held.empty()) {
    peer.held.push_back(&operation);
  } else {
    StartSend(operation);
  }
}

void UcxTransport::StartSend(Operation& operation) {
  const Peer& peer = *operation.peer;
  if (!dropped_.ok() || !peer.lost.ok())
    return Finish(operation, dropped_.ok() ? peer.lost : dropped_);
  ucp_request_param_t params = ParamsFor(operation);
  params.cb.send = &UcxTransport::OnSent;
  const ucs_status_ptr_t request = ucx_.tag_send_nbx(peer.endpoint, operation.bytes,
                                                     operation.size_bytes, operation.tag, &params);
  // Without a request it has ended at once, and no callback comes.
  if (!UCS_PTR_IS_PTR(request))
    return Finish(operation, StatusOf(operation, UCS_PTR_STATUS(request)));
  operation.request = request;
}

void UcxTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  // The endpoint is not needed to receive, but to hear of the peer's end.
  Peer& peer = PeerOf(from);
  Operation& operation =
      NewOperation(peer, /*is_receive=*/true, UcxTag(from, tag), bytes, std::move(done));
  if (!dropped_.ok()) return Finish(operation, dropped_);
  ucp_request_param_t params = ParamsFor(operation);
  // UCX 1.13 leaves out the length of a message that is received at once, unless it has to call
  // back.
  params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = &UcxTransport::OnReceived;
  constexpr uint64_t kExactly = ~uint64_t{0};
  const ucs_status_ptr_t request = ucx_.tag_recv_nbx(context_.worker(), bytes.data(), bytes.size(),
                                                     operation.tag, kExactly, &params);
  if (UCS_PTR_IS_ERR(request))
    return Finish(operation, StatusOf(operation, UCS_PTR_STATUS(request)));
  operation.request = request;
  if (operation.ended_early) return Finish(operation, *operation.ended_early);
  // What a lost peer has sent before its end is received; else the receive is cancelled.
  if (!peer.lost.ok()) {
    peer.end_handled = false;
    peer_lost_ = true;
  }
}

void UcxTransport::Finish(Operation& operation, absl::Status status) {
  finished_.emplace_back(std::move(operation.done), std::move(status));
  ++operation.peer->ended;
  if (operation.request != nullptr) ucx_.request_free(operation.request);
  pending_.erase(operation.self);
}

absl::Status UcxTransport::StatusOf(const Operation& operation, ucs_status_t status) const {
  if (status == UCS_OK) return absl::OkStatus();
  if (!dropped_.ok()) return dropped_;
  if (!operation.peer->lost.ok()) return operation.peer->lost;
  if (status == UCS_ERR_MESSAGE_TRUNCATED) {
    return absl::InternalError(absl::StrCat("message from rank ", ToInt(operation.peer->rank),
                                            " is longer than the ", operation.size_bytes,
                                            " bytes expected"));
  }
  return PeerLost(operation.peer->rank, ucx_.Error("its connection", status).message());
}

absl::Status UcxTransport::ReceivedStatus(const Operation& operation, ucs_status_t status,
                                          size_t length) const {
  if (status != UCS_OK || length == operation.size_bytes) return StatusOf(operation, status);
  return absl::InternalError(absl::StrCat("message from rank ", ToInt(operation.peer->rank),
                                          " has ", length, " bytes, expected ",
                                          operation.size_bytes));
}

void UcxTransport::OnSent(void*, ucs_status_t status, void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  operation.transport->Finish(operation, operation.transport->StatusOf(operation, status));
}

void UcxTransport::OnReceived(void*, ucs_status_t status, const ucp_tag_recv_info_t* message,
                              void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  absl::Status result = operation.transport->ReceivedStatus(operation, status, message->length);
  if (operation.request == nullptr) {
    operation.ended_early = std::move(result);  // Receive has not returned
  } else {
    operation.transport->Finish(operation, std::move(result));
  }
}

// Only takes note: UCX is in the middle of its progress.
void UcxTransport::OnEndpointError(void* user_data, ucp_ep_h, ucs_status_t status) {
  Peer& peer = *static_cast<Peer*>(user_data);
  if (peer.lost.ok())
    peer.lost =
        PeerLost(peer.rank, peer.transport->ucx_.Error("its connection ended", status).message());
  peer.transport->peer_lost_ = true;
}

bool UcxTransport::Progress() {
  if (context_.worker() == nullptr) return false;
  if (aborted_.load(std::memory_order_acquire) && dropped_.ok())
    DropEverything(absl::AbortedError("the transport was aborted"));
  bool moved = false;
  for (int i = 0; i < kProgressPerTurn && ucx_.worker_progress(context_.worker()) != 0; ++i)
    moved = true;
  for (Peer* peer : std::exchange(newly_connected_, {})) SendHeld(*peer);
  if (++turns_ % kTurnsPerClock == 0 && !pending_.empty() && dropped_.ok()) WatchPeers();
  if (peer_lost_) HandleLostPeers();
  moved |= !finished_.empty();
  CallFinished();
  return moved;
}

void UcxTransport::HandleLostPeers() {
  peer_lost_ = false;
  for (auto& [rank, peer] : peers_) {
    if (peer.lost.ok() || peer.end_handled) continue;
    peer.end_handled = true;
    CloseEndpoint(peer, /*force=*/true);
    SendHeld(peer);  // which ends them
    CancelReceives(&peer);
  }
}

void UcxTransport::WatchPeers() {
  const absl::Time now = clock_.Now();
  if (now < next_watch_) return;
  next_watch_ = now + kWatchInterval;
  std::set<const Peer*> waited_for;
  for (const Operation& operation : pending_) waited_for.insert(operation.peer);
  for (auto& [rank, peer] : peers_) {
    const bool is_there = peer.lost.ok() && peer.endpoint != nullptr;
    if (is_there && peer.probe_port.has_value()) Watch(peer, waited_for.contains(&peer), now);
  }
}

void UcxTransport::Watch(Peer& peer, bool waits, absl::Time now) {
  PeerWatch& watch = peer.watch;
  const bool moved = std::exchange(peer.ended_before, peer.ended) != peer.ended;
  if (moved || !waits) watch.Moved(now);
  if (peer.probe.has_value()) {
    const PeerProbe::Answer answer = peer.probe->Poll();
    if (answer == PeerProbe::Answer::kReached) {
      watch.Answered(now);
    } else if (watch.PatienceIsOver(now)) {
      watch.NotAnswered();
    } else {
      return;
    }
    peer.probe.reset();
  }
  if (watch.silent(/*connects=*/peer.connecting != nullptr)) {
    peer.lost = PeerSilent(peer.rank, absl::StrCat("nothing comes from it, and its host does not ",
                                                   "answer at ", peer.probe_port->ToString()));
    peer_lost_ = true;
  } else if (watch.WantsProbe(now)) {
    peer.probe.emplace(*peer.probe_port);
    watch.Asked(now);
  }
}

void UcxTransport::CancelReceives(const Peer* peer) {
  std::vector<void*> requests;  // a cancelled operation leaves pending_
  for (const Operation& operation : pending_) {
    if (operation.is_receive && (peer == nullptr || operation.peer == peer))
      requests.push_back(operation.request);
  }
  for (void* request : requests) ucx_.request_cancel(context_.worker(), request);
}

void UcxTransport::CloseEndpoint(Peer& peer, bool force) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0;  // else it flushes
  const ucs_status_ptr_t request = ucx_.ep_close_nbx(peer.endpoint, &params);
  peer.endpoint = nullptr;
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void UcxTransport::DropEverything(absl::Status status) {
  if (dropped_.ok()) dropped_ = std::move(status);
  CancelReceives(nullptr);
  for (auto& [rank, peer] : peers_) SendHeld(peer);  // which ends them
  // What is being sent, or already coming in, ends with its endpoint; the other endpoints end with
  // the transport.
  std::vector<Peer*> busy;
  for (const Operation& operation : pending_) busy.push_back(operation.peer);
  for (Peer* peer : busy) CloseEndpoint(*peer, /*force=*/true);
}

template <typename Condition>
void UcxTransport::ProgressUntil(Condition condition, absl::Duration timeout) {
  const absl::Time deadline = clock_.Now() + timeout;
  while (true) {
    ucx_.worker_progress(context_.worker());
    std::erase_if(closing_, [this](void* request) {
      if (ucx_.request_check_status(request) == UCS_INPROGRESS) return false;
      ucx_.request_free(request);
      return true;
    });
    if (condition() || clock_.Now() >= deadline) return;
  }
}

void UcxTransport::CallFinished() {
  std::vector<std::pair<Done, absl::Status>> finished;
  finished.swap(finished_);  // a `done` may Send and Receive
  for (auto& [done, status] : finished) std::move(done)(std::move(status));
}

}  // namespace

std::unique_ptr<Transport> MakeUcxTransport(const UcxFunctions& ucx, UcxTransportOptions options,
                                            Clock& clock) {
  return std::make_unique<UcxTransport>(ucx, std::move(options), clock);
}

}  // namespace coordd
