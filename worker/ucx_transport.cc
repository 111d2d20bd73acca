#include "worker/ucx_transport.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "worker/copy_bytes.h"
#include "worker/message_inbox.h"
#include "worker/peer_status.h"
#include "worker/ucx_context.h"
#include "worker/ucx_message.h"
#include "worker/ucx_peers.h"

namespace coordd {
namespace {

constexpr int32_t kMaxRanks = 1 << 24;

// For what UCX has still to let go of after it was told to drop everything: no waiting is involved.
constexpr absl::Duration kDropTimeout = absl::Seconds(2);

// After how many turns the clock is looked at, and who keeps this rank waiting.
constexpr uint32_t kTurnsPerClock = 32;

// Rounds of UCX in one Progress: others, and Abort, want their turn.
constexpr int kProgressPerTurn = 32;

// What a peer that does not receive yet may be sent all the same, and has to keep: else a rank that
// is late would be sent whole tensors. What is more has a rendezvous, until the peer says in a
// message of its own that it has taken some, or a rendezvous ends, which tells the same.
constexpr uint64_t kUnprovenBytesMax = uint64_t{4} << 20;

}  // namespace

// A Send or a Receive that is under way.
struct UcxOperation : WaitingReceive {
  UcxPeer* peer = nullptr;
  bool is_receive = false;
  bool is_rendezvous = false;        // a Send that ends when it is received
  const std::byte* bytes = nullptr;  // of a Send
  std::byte* landing = nullptr;      // of a Receive
  size_t size_bytes = 0;
  Transport::Done done;
  Transport::Taken taken;  // instead, of a ReceiveInPlace
  MessageLabel label;      // of a Send
  UcxPayload payload;      // with that in front
  void* request = nullptr;
  Transport* transport = nullptr;
  std::list<UcxOperation>::iterator self;
};

namespace {

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
  using Operation = UcxOperation;
  struct Finished {
    Done done;
    Taken taken;
    absl::Status status;
    const std::byte* bytes = nullptr;  // for `taken`
    AlignedBuffer kept;                // holds them
  };

  UcxPeer& PeerOf(Rank rank) { return peers_.Of(rank, /*connects=*/dropped_.ok()); }
  Operation& NewOperation(UcxPeer& peer);
  void StartSend(Operation& operation);
  void SendHeld(UcxPeer& peer);
  void StartReceive(Rank from, Tag tag, absl::Span<std::byte> landing, Done done, Taken taken);
  // A message that is for this receive, by where it is.
  void Deliver(Operation& operation, const std::byte* bytes, size_t size_bytes);
  void Deliver(Operation& operation, KeptMessage message);
  // False: it has ended instead, and nothing gets the message.
  bool Fetch(Operation& operation, void* rendezvous, size_t size_bytes);
  ucs_status_t Arrive(const UcxArrival& arrival);
  ucp_request_param_t ParamsFor(Operation& operation) const;
  void Finish(Operation& operation, absl::Status status, const std::byte* bytes = nullptr,
              AlignedBuffer kept = AlignedBuffer());
  absl::Status StatusOf(const Operation& operation, ucs_status_t status) const;
  absl::Status SizeStatus(const Operation& operation, size_t size_bytes) const;
  void HandleLostPeers();
  void WatchPeers();
  void CancelReceives(const UcxPeer* peer);  // nullptr: of all peers
  void DropEverything(absl::Status status);
  void CallFinished();

  static UcxTransport& TransportOf(const Operation& operation) {
    return *static_cast<UcxTransport*>(operation.transport);
  }
  static void OnSent(void* request, ucs_status_t status, void* user_data);
  static void OnFetched(void* request, ucs_status_t status, size_t length, void* user_data);
  static ucs_status_t OnMessage(void* transport, const void* header, size_t header_bytes,
                                void* data, size_t size_bytes, const ucp_am_recv_param_t* param);
  static ucs_status_t OnMessageInFront(void* transport, const void* header, size_t header_bytes,
                                       void* data, size_t size_bytes,
                                       const ucp_am_recv_param_t* param);

  // Constant after construction.
  const UcxFunctions ucx_;
  const UcxTransportOptions options_;
  Clock& clock_;

  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Touched by the owner's thread.
  Rank self_;
  absl::Status dropped_;  // OK: alive; else the end of all operations
  UcxPeers peers_{ucx_, options_, clock_};
  std::list<Operation> pending_;
  std::list<Operation> spare_;  // for their memory
  MessageInbox inbox_;
  std::vector<Finished> finished_;  // for the next Progress
  bool moved_ = false;              // something was taken in this Progress
  uint32_t turns_ = 0;              // of Progress
  UcxContext context_;  // last: it ends first, and its callbacks reach what stands above
};

UcxTransport::~UcxTransport() {
  if (context_.worker() == nullptr) return;
  DropEverything(absl::AbortedError("the transport was closed"));
  peers_.ProgressUntil([this] { return pending_.empty(); }, kDropTimeout);
  peers_.CloseAll();
  peers_.ForgetRequests();
  while (!pending_.empty()) Finish(pending_.front(), dropped_);
  context_.End(clock_);
  CallFinished();
}

absl::Status UcxTransport::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  if (layout.size() > kMaxRanks) {
    return absl::ResourceExhaustedError(
        absl::StrCat(layout.size(), " ranks, a UCX tag has room for ", kMaxRanks));
  }
  self_ = layout.self();
  COORDD_ASSIGN_OR_RETURN(context_, UcxContext::Open(ucx_, options_, layout));
  COORDD_RETURN_IF_ERROR(context_.Handle(kLabelApart, &UcxTransport::OnMessage, this));
  COORDD_RETURN_IF_ERROR(context_.Handle(kLabelInFront, &UcxTransport::OnMessageInFront, this));
  return peers_.Publish(context_, layout, store, deadline);
}

void UcxTransport::SendHeld(UcxPeer& peer) {
  std::deque<Operation*> held;
  held.swap(peer.held);
  for (Operation* operation : held) StartSend(*operation);
}

UcxTransport::Operation& UcxTransport::NewOperation(UcxPeer& peer) {
  if (spare_.empty()) spare_.emplace_back();
  pending_.splice(pending_.end(), spare_, spare_.begin());
  Operation& operation = pending_.back();
  operation.transport = this;
  operation.peer = &peer;
  operation.is_receive = operation.is_rendezvous = false;
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
  UcxPeer& peer = PeerOf(to);
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
  UcxPeer& peer = *operation.peer;
  if (!dropped_.ok() || !peer.lost.ok())
    return Finish(operation, dropped_.ok() ? peer.lost : dropped_);
  ucp_request_param_t params = ParamsFor(operation);
  params.cb.send = &UcxTransport::OnSent;
  ucs_status_ptr_t request = nullptr;
  operation.label.taken_bytes = peer.taken_bytes;
  const size_t size_bytes = operation.size_bytes;
  const auto bytes_max = static_cast<size_t>(context_.message_bytes_max());
  const bool proven = peer.eager_bytes - peer.proven_bytes + size_bytes <= kUnprovenBytesMax;
  const bool in_front = size_bytes >= kInFrontBytesMin && size_bytes <= bytes_max && proven;
  if (in_front) {
    peer.eager_bytes += size_bytes;
    operation.payload.Set(operation.label, {operation.bytes, size_bytes});
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_FLAGS;
    params.datatype = ucp_dt_make_iov();
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    request = ucx_.am_send_nbx(peer.endpoint, kLabelInFront, nullptr, 0, operation.payload.parts(),
                               operation.payload.count(), &params);
  } else {
    if (bytes_max > 0 && size_bytes >= kInFrontBytesMin) {
      operation.is_rendezvous = true;
      params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_AM_SEND_FLAG_RNDV;
    }
    request = ucx_.am_send_nbx(peer.endpoint, kLabelApart, &operation.label,
                               sizeof(operation.label), operation.bytes, size_bytes, &params);
  }
  // Without a request it has ended at once, and no callback comes.
  if (!UCS_PTR_IS_PTR(request))
    return Finish(operation, StatusOf(operation, UCS_PTR_STATUS(request)));
  operation.request = request;
}

void UcxTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  StartReceive(from, tag, bytes, std::move(done), nullptr);
}

void UcxTransport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) {
  StartReceive(from, tag, landing, nullptr, std::move(taken));
}

void UcxTransport::StartReceive(Rank from, Tag tag, absl::Span<std::byte> landing, Done done,
                                Taken taken) {
  // The endpoint is not needed to receive, but to hear of the peer's end.
  Operation& operation = NewOperation(PeerOf(from));
  operation.is_receive = true;
  operation.expected_tag = UcxTag(from, tag);
  operation.landing = landing.data();
  operation.size_bytes = landing.size();
  operation.done = std::move(done);
  operation.taken = std::move(taken);
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
  return static_cast<UcxTransport*>(transport)->Arrive(
      WithLabelApart(header, header_bytes, data, size_bytes, *param));
}

ucs_status_t UcxTransport::OnMessageInFront(void* transport, const void*, size_t, void* data,
                                            size_t size_bytes, const ucp_am_recv_param_t*) {
  return static_cast<UcxTransport*>(transport)->Arrive(WithLabelInFront(data, size_bytes));
}

// In the middle of UCX's progress; the bytes are UCX's again behind it, but for a rendezvous'.
ucs_status_t UcxTransport::Arrive(const UcxArrival& arrival) {
  // Of a rendezvous the sender hears that.
  if (!dropped_.ok()) return arrival.is_rendezvous ? UCS_ERR_CANCELED : UCS_OK;
  const MessageLabel& label = arrival.label;
  const auto* const bytes = static_cast<const std::byte*>(arrival.data);
  UcxPeer& sender = peers_.Of(label.sender(), /*connects=*/false);
  sender.proven_bytes = std::max(sender.proven_bytes, label.taken_bytes);
  bool is_dropped = false;  // by UCX, which tells the sender that it is received
  if (WaitingReceive* const waiting = inbox_.Arrived(label); waiting != nullptr) {
    Operation& operation = *static_cast<Operation*>(waiting);
    if (!arrival.is_rendezvous) {
      Deliver(operation, bytes, arrival.size_bytes);
    } else {
      is_dropped = !Fetch(operation, arrival.data, arrival.size_bytes);
    }
  } else {
    KeptMessage message;
    message.label = label;
    if (arrival.is_rendezvous) {
      message.rendezvous = arrival.data;
    } else {
      message.bytes = inbox_.NewBuffer(static_cast<int64_t>(arrival.size_bytes));
      COORDD_CHECK(message.bytes.data() != nullptr);  // as elsewhere, no memory is the end
      CopyBytes(message.bytes.data(), bytes, static_cast<int64_t>(arrival.size_bytes));
    }
    inbox_.Keep(std::move(message));
  }
  while (std::optional<MessageInbox::Match> match = inbox_.NextMatch(label.sender()))
    Deliver(*static_cast<Operation*>(match->receive), std::move(match->message));
  return arrival.is_rendezvous && !is_dropped ? UCS_INPROGRESS : UCS_OK;
}

void UcxTransport::Deliver(Operation& operation, const std::byte* bytes, size_t size_bytes) {
  if (size_bytes >= kInFrontBytesMin) operation.peer->taken_bytes += size_bytes;
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
  if (message.rendezvous != nullptr) {
    if (!Fetch(operation, message.rendezvous, size_bytes))
      ucx_.am_data_release(context_.worker(), message.rendezvous);
    return;
  }
  if (size_bytes >= kInFrontBytesMin) operation.peer->taken_bytes += size_bytes;
  absl::Status status = SizeStatus(operation, size_bytes);
  const std::byte* const bytes = message.bytes.data();
  if (status.ok() && operation.taken != nullptr)
    return Finish(operation, absl::OkStatus(), bytes, std::move(message.bytes));
  if (status.ok()) CopyBytes(operation.landing, bytes, static_cast<int64_t>(size_bytes));
  inbox_.GiveBack(std::move(message.bytes));
  Finish(operation, std::move(status));
}

bool UcxTransport::Fetch(Operation& operation, void* rendezvous, size_t size_bytes) {
  absl::Status status = SizeStatus(operation, size_bytes);
  if (status.ok() && !operation.peer->lost.ok()) status = operation.peer->lost;
  if (!status.ok()) {
    Finish(operation, std::move(status));
    return false;
  }
  ucp_request_param_t params = ParamsFor(operation);
  // It is not over before it has a request, which is what its callback looks at.
  params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &UcxTransport::OnFetched;
  const ucs_status_ptr_t request = ucx_.am_recv_data_nbx(
      context_.worker(), rendezvous, operation.landing, operation.size_bytes, &params);
  if (UCS_PTR_IS_PTR(request)) {
    operation.request = request;
  } else {
    Finish(operation, StatusOf(operation, UCS_PTR_STATUS(request)));
  }
  return true;
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
  if (operation.is_rendezvous) operation.peer->proven_bytes = operation.peer->eager_bytes;
  TransportOf(operation).Finish(operation, TransportOf(operation).StatusOf(operation, status));
}

void UcxTransport::OnFetched(void* request, ucs_status_t status, size_t, void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  operation.request = request;
  TransportOf(operation).Finish(operation, TransportOf(operation).StatusOf(operation, status));
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
  for (UcxPeer* peer : peers_.TakeConnected()) SendHeld(*peer);
  if (++turns_ % kTurnsPerClock == 0 && !pending_.empty() && dropped_.ok()) WatchPeers();
  if (peers_.has_lost()) HandleLostPeers();
  moved |= moved_ || !finished_.empty();
  CallFinished();
  return moved;
}

void UcxTransport::HandleLostPeers() {
  for (UcxPeer* peer : peers_.TakeLost()) {
    SendHeld(*peer);  // which ends them
    CancelReceives(peer);
  }
}

void UcxTransport::WatchPeers() {
  if (!peers_.IsTimeToWatch()) return;
  std::set<const UcxPeer*> waited_for;
  for (const Operation& operation : pending_) waited_for.insert(operation.peer);
  peers_.Watch(waited_for);
}

// Those that are under way end with their endpoint.
void UcxTransport::CancelReceives(const UcxPeer* peer) {
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

void UcxTransport::DropEverything(absl::Status status) {
  if (dropped_.ok()) dropped_ = std::move(status);
  CancelReceives(nullptr);
  for (UcxPeer* peer : peers_.All()) SendHeld(*peer);  // which ends them
  // What is being sent, or already coming in, ends with its endpoint; the other endpoints end with
  // the transport.
  std::vector<UcxPeer*> busy;
  for (const Operation& operation : pending_) busy.push_back(operation.peer);
  // So does what is still with its sender: to be released without that would be to be received.
  const std::list<KeptMessage> kept = inbox_.TakeAll();
  for (const KeptMessage& message : kept) {
    UcxPeer& peer = peers_.Of(message.label.sender(), /*connects=*/false);
    if (message.rendezvous != nullptr && peer.connecting == nullptr) busy.push_back(&peer);
  }
  for (UcxPeer* peer : busy) peers_.Close(*peer, /*force=*/true);
  for (const KeptMessage& message : kept) {
    if (message.rendezvous != nullptr) ucx_.am_data_release(context_.worker(), message.rendezvous);
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
