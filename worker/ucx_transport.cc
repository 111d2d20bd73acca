#include "worker/ucx_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
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
#include "worker/copy_bytes.h"
#include "worker/message_inbox.h"
#include "worker/peer_addresses.h"
#include "worker/peer_probe.h"
#include "worker/peer_status.h"
#include "worker/peer_watch.h"
#include "worker/ucx_context.h"

namespace coordd {
namespace {

constexpr absl::string_view kUcxKeyPrefix = "ucx";
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

// Active messages: label and bytes apart, or one behind the other in what UCX calls the payload.
constexpr unsigned kLabelApart = 1, kLabelInFront = 2;

// Over TCP a message is read where the kernel has put it, in a buffer of UCX's that starts at a
// cache line, behind 5 bytes of uct_tcp_am_hdr_t and 8 of ucp_am_hdr_t. What is worth it is sent
// with so much in front of it that it starts at the next line, and filled up to a line, so that the
// message behind it, which is often read by the same call of the kernel's, does so, too. (AMD's
// Zen 4 copies 15 times slower where the target lies 1 to 15 bytes behind the source modulo the
// page, which is what a target at the start of a line would be.)
constexpr size_t kWireLineBytes = 64;
constexpr size_t kFrontBytes = kWireLineBytes - 5 - 8;
constexpr size_t kInFrontBytesMin = size_t{8} << 10;

uint64_t UcxTag(Rank sender, Tag tag) {
  return (static_cast<uint64_t>(ToInt(sender)) << MessageLabel::kTagBits) | tag.Encode();
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
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override;
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
    uint64_t sent = 0;                    // messages
    bool end_handled = false;  // of a lost peer: its endpoint is closed, its receives cancelled
  };
  struct Operation : WaitingReceive {
    UcxTransport* transport = nullptr;
    Peer* peer = nullptr;
    bool is_receive = false;
    const std::byte* bytes = nullptr;  // of a Send
    std::byte* landing = nullptr;      // of a Receive
    size_t size_bytes = 0;
    Done done;
    Taken taken;         // instead, of a ReceiveInPlace
    MessageLabel label;  // of a Send, with what is around its bytes
    std::array<ucp_dt_iov_t, 3> parts = {};
    std::array<std::byte, kFrontBytes> front = {};
    void* request = nullptr;
    std::list<Operation>::iterator self;
  };
  struct Finished {
    Done done;
    Taken taken;
    absl::Status status;
    const std::byte* bytes = nullptr;  // for `taken`
    AlignedBuffer kept;                // holds them
  };

  Peer& PeerOf(Rank rank);
  void MakeEndpoint(Peer& peer);
  Operation& NewOperation(Peer& peer);
  void StartSend(Operation& operation);
  void StartConnecting(Peer& peer);
  void SendHeld(Peer& peer);
  void* PutInFront(Operation& operation, size_t& parts) const;
  void StartReceive(Operation& operation);
  // A message that is for this receive, by where it is.
  void Deliver(Operation& operation, const std::byte* bytes, size_t size_bytes);
  void Deliver(Operation& operation, KeptMessage message);
  void Fetch(Operation& operation, void* rendezvous, size_t size_bytes);
  ucs_status_t Arrive(const MessageLabel& label, void* data, size_t size_bytes, bool rendezvous);
  void DropKept();
  ucp_request_param_t ParamsFor(Operation& operation) const;
  void Finish(Operation& operation, absl::Status status, const std::byte* bytes = nullptr,
              AlignedBuffer kept = AlignedBuffer());
  absl::Status StatusOf(const Operation& operation, ucs_status_t status) const;
  absl::Status SizeStatus(const Operation& operation, size_t size_bytes) const;
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
  static void OnFetched(void* request, ucs_status_t status, size_t length, void* user_data);
  static ucs_status_t OnMessage(void* transport, const void* header, size_t header_bytes,
                                void* data, size_t size_bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t OnMessageInFront(void* transport, const void* header, size_t header_bytes,
                                       void* data, size_t size_bytes,
                                       const ucp_am_recv_param_t* param);
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
  std::list<Operation> spare_;  // for their memory
  MessageInbox inbox_;
  std::vector<void*> closing_;           // requests of endpoints that are being closed
  std::vector<Finished> finished_;       // for the next Progress
  std::optional<ProbePort> probe_port_;  // of this rank
  bool moved_ = false;                   // something was taken in this Progress
  uint32_t turns_ = 0;                   // of Progress
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
  COORDD_RETURN_IF_ERROR(context_.Handle(kLabelApart, &UcxTransport::OnMessage, this));
  COORDD_RETURN_IF_ERROR(context_.Handle(kLabelInFront, &UcxTransport::OnMessageInFront, this));
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

UcxTransport::Operation& UcxTransport::NewOperation(Peer& peer) {
  if (spare_.empty()) spare_.emplace_back();
  pending_.splice(pending_.end(), spare_, spare_.begin());
  Operation& operation = pending_.back();
  operation.transport = this;
  operation.peer = &peer;
  operation.is_receive = false;
  operation.request = nullptr;
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
  Operation& operation = NewOperation(peer);
  operation.bytes = bytes.data();
  operation.size_bytes = bytes.size();
  operation.label = {UcxTag(self_, tag), peer.sent++, bytes.size()};
  operation.done = std::move(done);
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
  ucs_status_ptr_t request = nullptr;
  const auto bytes_max = static_cast<size_t>(context_.message_bytes_max());
  if (operation.size_bytes >= kInFrontBytesMin && operation.size_bytes <= bytes_max) {
    size_t parts = 0;
    void* const payload = PutInFront(operation, parts);
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS;
    params.datatype = ucp_dt_make_iov();
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    request = ucx_.am_send_nbx(peer.endpoint, kLabelInFront, nullptr, 0, payload, parts, &params);
  } else {
    request =
        ucx_.am_send_nbx(peer.endpoint, kLabelApart, &operation.label, sizeof(operation.label),
                         operation.bytes, operation.size_bytes, &params);
  }
  // Without a request it has ended at once, and no callback comes.
  if (!UCS_PTR_IS_PTR(request))
    return Finish(operation, StatusOf(operation, UCS_PTR_STATUS(request)));
  operation.request = request;
}

// What is sent, in parts: the label with the space behind it, the bytes, and up to the next line.
void* UcxTransport::PutInFront(Operation& operation, size_t& parts) const {
  static constexpr std::array<std::byte, kWireLineBytes> kZeros = {};
  std::memcpy(operation.front.data(), &operation.label, sizeof(operation.label));
  operation.parts[0] = {operation.front.data(), operation.front.size()};
  operation.parts[1] = {const_cast<std::byte*>(operation.bytes), operation.size_bytes};
  const size_t rest = operation.size_bytes % kWireLineBytes;
  operation.parts[2] = {const_cast<std::byte*>(kZeros.data()), kWireLineBytes - rest};
  parts = rest == 0 ? 2 : 3;
  return operation.parts.data();
}

void UcxTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  // The endpoint is not needed to receive, but to hear of the peer's end.
  Operation& operation = NewOperation(PeerOf(from));
  operation.done = std::move(done);
  operation.expected_tag = UcxTag(from, tag);
  operation.landing = bytes.data();
  operation.size_bytes = bytes.size();
  StartReceive(operation);
}

void UcxTransport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) {
  Operation& operation = NewOperation(PeerOf(from));
  operation.taken = std::move(taken);
  operation.expected_tag = UcxTag(from, tag);
  operation.landing = landing.data();
  operation.size_bytes = landing.size();
  StartReceive(operation);
}

void UcxTransport::StartReceive(Operation& operation) {
  operation.is_receive = true;
  if (!dropped_.ok()) return Finish(operation, dropped_);
  // What a lost peer has sent before its end is received.
  if (std::optional<KeptMessage> message = inbox_.Take(operation.expected_tag)) {
    Deliver(operation, *std::move(message));
  } else if (operation.peer->lost.ok()) {
    inbox_.Wait(operation);
  } else {
    Finish(operation, operation.peer->lost);
  }
}

ucs_status_t UcxTransport::OnMessage(void* transport, const void* header, size_t header_bytes,
                                     void* data, size_t size_bytes,
                                     const ucp_am_recv_param_t* param) {
  MessageLabel label;
  COORDD_CHECK(header_bytes == sizeof(label));
  std::memcpy(&label, header, sizeof(label));
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<UcxTransport*>(transport)->Arrive(label, data, size_bytes, rendezvous);
}

ucs_status_t UcxTransport::OnMessageInFront(void* transport, const void*, size_t, void* data,
                                            size_t size_bytes, const ucp_am_recv_param_t*) {
  MessageLabel label;
  COORDD_CHECK(size_bytes >= kFrontBytes);
  std::memcpy(&label, data, sizeof(label));
  COORDD_CHECK(label.size_bytes <= size_bytes - kFrontBytes);
  return static_cast<UcxTransport*>(transport)->Arrive(
      label, static_cast<std::byte*>(data) + kFrontBytes, label.size_bytes, /*rendezvous=*/false);
}

// In the middle of UCX's progress; `data` is the caller's again behind it, but for a rendezvous'.
ucs_status_t UcxTransport::Arrive(const MessageLabel& label, void* data, size_t size_bytes,
                                  bool rendezvous) {
  if (!dropped_.ok()) return UCS_OK;
  const auto* const bytes = static_cast<const std::byte*>(data);
  if (WaitingReceive* const waiting = inbox_.Arrived(label); waiting != nullptr) {
    Operation& operation = *static_cast<Operation*>(waiting);
    if (rendezvous) {
      Fetch(operation, data, size_bytes);
    } else {
      Deliver(operation, bytes, size_bytes);
    }
  } else {
    KeptMessage message;
    message.label = label;
    if (rendezvous) {
      message.rendezvous = data;
    } else {
      message.bytes = inbox_.NewBuffer(static_cast<int64_t>(size_bytes));
      COORDD_CHECK(message.bytes.data() != nullptr);  // as elsewhere, no memory is the end
      CopyBytes(message.bytes.data(), bytes, static_cast<int64_t>(size_bytes));
    }
    inbox_.Keep(std::move(message));
  }
  while (std::optional<MessageInbox::Match> match = inbox_.NextMatch(label.sender()))
    Deliver(*static_cast<Operation*>(match->receive), std::move(match->message));
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

void UcxTransport::Deliver(Operation& operation, const std::byte* bytes, size_t size_bytes) {
  absl::Status status = SizeStatus(operation, size_bytes);
  if (!status.ok()) return Finish(operation, std::move(status));
  const bool aligned = reinterpret_cast<uintptr_t>(bytes) % kInPlaceAlignment == 0;
  if (operation.taken == nullptr || !aligned) {
    CopyBytes(operation.landing, bytes, static_cast<int64_t>(size_bytes));
    return Finish(operation, absl::OkStatus());
  }
  // At once, as long as they are there.
  Taken taken = std::move(operation.taken);
  operation.taken = nullptr;
  Finish(operation, absl::OkStatus());
  moved_ = true;
  std::move(taken)(bytes);
}

void UcxTransport::Deliver(Operation& operation, KeptMessage message) {
  const auto size_bytes = static_cast<size_t>(message.label.size_bytes);
  if (message.rendezvous != nullptr) return Fetch(operation, message.rendezvous, size_bytes);
  absl::Status status = SizeStatus(operation, size_bytes);
  const std::byte* const bytes = message.bytes.data();
  if (status.ok() && operation.taken != nullptr)
    return Finish(operation, absl::OkStatus(), bytes, std::move(message.bytes));
  if (status.ok()) CopyBytes(operation.landing, bytes, static_cast<int64_t>(size_bytes));
  inbox_.GiveBack(std::move(message.bytes));
  Finish(operation, std::move(status));
}

void UcxTransport::Fetch(Operation& operation, void* rendezvous, size_t size_bytes) {
  absl::Status status = SizeStatus(operation, size_bytes);
  if (status.ok() && !operation.peer->lost.ok()) status = operation.peer->lost;
  if (!status.ok()) {
    ucx_.am_data_release(context_.worker(), rendezvous);
    return Finish(operation, std::move(status));
  }
  ucp_request_param_t params = ParamsFor(operation);
  // It is not over before it has a request, which is what its callback looks at.
  params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &UcxTransport::OnFetched;
  const ucs_status_ptr_t request = ucx_.am_recv_data_nbx(
      context_.worker(), rendezvous, operation.landing, operation.size_bytes, &params);
  if (!UCS_PTR_IS_PTR(request))
    return Finish(operation, StatusOf(operation, UCS_PTR_STATUS(request)));
  operation.request = request;
}

void UcxTransport::Finish(Operation& operation, absl::Status status, const std::byte* bytes,
                          AlignedBuffer kept) {
  if (operation.done != nullptr || operation.taken != nullptr) {
    finished_.push_back({std::move(operation.done), std::move(operation.taken), std::move(status),
                         bytes == nullptr ? operation.landing : bytes, std::move(kept)});
    operation.done = nullptr;
    operation.taken = nullptr;
  }
  ++operation.peer->ended;
  if (operation.request != nullptr) ucx_.request_free(operation.request);
  spare_.splice(spare_.begin(), pending_, operation.self);
}

absl::Status UcxTransport::StatusOf(const Operation& operation, ucs_status_t status) const {
  if (status == UCS_OK) return absl::OkStatus();
  if (!dropped_.ok()) return dropped_;
  if (!operation.peer->lost.ok()) return operation.peer->lost;
  return PeerLost(operation.peer->rank, ucx_.Error("its connection", status).message());
}

absl::Status UcxTransport::SizeStatus(const Operation& operation, size_t size_bytes) const {
  if (size_bytes == operation.size_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("message from rank ", ToInt(operation.peer->rank),
                                          " has ", size_bytes, " bytes, expected ",
                                          operation.size_bytes));
}

void UcxTransport::OnSent(void*, ucs_status_t status, void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  operation.transport->Finish(operation, operation.transport->StatusOf(operation, status));
}

void UcxTransport::OnFetched(void* request, ucs_status_t status, size_t, void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  operation.request = request;
  operation.transport->Finish(operation, operation.transport->StatusOf(operation, status));
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
  moved_ = false;
  // What has ended may have something to send.
  for (int i = 0; i < kProgressPerTurn && finished_.empty() && !moved_; ++i) {
    if (ucx_.worker_progress(context_.worker()) == 0) break;
    moved = true;
  }
  for (Peer* peer : std::exchange(newly_connected_, {})) SendHeld(*peer);
  if (++turns_ % kTurnsPerClock == 0 && !pending_.empty() && dropped_.ok()) WatchPeers();
  if (peer_lost_) HandleLostPeers();
  moved |= moved_ || !finished_.empty();
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

// Those that are under way end with their endpoint.
void UcxTransport::CancelReceives(const Peer* peer) {
  std::vector<Operation*> waiting;  // one that has ended leaves pending_
  for (Operation& operation : pending_) {
    if (operation.is_receive && operation.request == nullptr &&
        (peer == nullptr || operation.peer == peer)) {
      waiting.push_back(&operation);
    }
  }
  for (Operation* operation : waiting) {
    inbox_.Withdraw(*operation);
    Finish(*operation, dropped_.ok() ? operation->peer->lost : dropped_);
  }
}

// Tells the senders of what is still with them.
void UcxTransport::DropKept() {
  for (const KeptMessage& message : inbox_.TakeAll()) {
    if (message.rendezvous != nullptr) ucx_.am_data_release(context_.worker(), message.rendezvous);
  }
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
  DropKept();
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
  std::vector<Finished> finished;
  finished.swap(finished_);  // a `done` may Send and Receive
  for (Finished& each : finished) {
    if (each.taken == nullptr) {
      std::move(each.done)(std::move(each.status));
    } else if (each.status.ok()) {
      std::move(each.taken)(each.bytes);
    } else {
      std::move(each.taken)(std::move(each.status));
    }
    inbox_.GiveBack(std::move(each.kept));
  }
}

}  // namespace

std::unique_ptr<Transport> MakeUcxTransport(const UcxFunctions& ucx, UcxTransportOptions options,
                                            Clock& clock) {
  return std::make_unique<UcxTransport>(ucx, std::move(options), clock);
}

}  // namespace coordd
