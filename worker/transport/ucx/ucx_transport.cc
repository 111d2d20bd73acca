#include "worker/transport/ucx/ucx_transport.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/peer_status.h"
#include "worker/transport/ucx/ucx_transport_impl.h"

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

UcxTransport::~UcxTransport() {
  if (context_.worker() == nullptr) return;
  const bool is_goodbye = dropped_.ok() && pending_.empty() && !peers_.lost_any();
  DropEverything(absl::AbortedError("the transport was closed"));
  if (is_stopped_ && !is_goodbye) {
    peers_.CloseAllAtOnce();
    Release(inbox_.TakeAll());
  } else {
    EndByClosing();
    peers_.ProgressUntil([this] { return pending_.empty(); }, kDropTimeout);
    peers_.CloseAll();
    while (!pending_.empty()) Finish(pending_.front(), dropped_);
  }
  peers_.ForgetRequests();
  if (!is_goodbye && context_.EndsBadlyAfterLosses()) {
    context_.Keep();
  } else if (is_goodbye || !is_stopped_) {
    context_.End(clock_);
  }
  context_ = UcxContext();  // whatever UCX still holds ends here
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
  if (dropped_.ok() && (!peer.is_connected() || !peer.held.empty())) {
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

void UcxTransport::OnSent(void*, ucs_status_t status, void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  if (TransportOf(operation).is_stopped_) return;
  if (operation.is_rendezvous) operation.peer->proven_bytes = operation.peer->eager_bytes;
  TransportOf(operation).Finish(operation, TransportOf(operation).StatusOf(operation, status));
}

bool UcxTransport::Progress() {
  if (context_.worker() == nullptr) return false;
  if (aborted_.load(std::memory_order_acquire) && dropped_.ok())
    DropEverything(absl::AbortedError("the transport was aborted"));
  bool moved = false;
  moved_ = false;
  // What has ended may have something to send.
  for (int i = 0; i < kProgressPerTurn && !is_stopped_ && finished_.empty() && !moved_; ++i) {
    if (ucx_.worker_progress(context_.worker()) == 0) break;
    moved = true;
  }
  if (dropped_.ok()) peers_.Connect();
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
  if (!dropped_.ok()) return;
  dropped_ = std::move(status);
  CancelReceives(nullptr);
  for (UcxPeer* peer : peers_.All()) SendHeld(*peer);  // which ends them
  if (context_.message_bytes_max() == 0) return EndByClosing();
  // Over TCP UCX touches no memory but in its progress, and nobody calls that any more: up to 1.13
  // it ends the process (it uses what it has freed) when it makes progress behind endpoints that
  // were closed, and sees the end of a peer that was killed while they connected.
  is_stopped_ = true;
  while (!pending_.empty()) Finish(pending_.front(), dropped_);
}

// What is being sent, or already coming in, ends with its endpoint; the other endpoints end with
// the transport. So does what is still with its sender: to be released without that would be to be
// received.
void UcxTransport::EndByClosing() {
  std::vector<UcxPeer*> busy;
  for (const Operation& operation : pending_) busy.push_back(operation.peer);
  const std::list<KeptMessage> kept = inbox_.TakeAll();
  for (const KeptMessage& message : kept) {
    UcxPeer& peer = peers_.Of(message.label.sender(), /*connects=*/false);
    if (message.rendezvous != nullptr && peer.connecting == nullptr) busy.push_back(&peer);
  }
  for (UcxPeer* peer : busy) peers_.Close(*peer, /*force=*/true);
  Release(kept);
}

void UcxTransport::Release(const std::list<KeptMessage>& kept) {
  for (const KeptMessage& message : kept)
    if (message.rendezvous != nullptr) ucx_.am_data_release(context_.worker(), message.rendezvous);
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

std::unique_ptr<Transport> MakeUcxTransport(const UcxFunctions& ucx, UcxTransportOptions options,
                                            Clock& clock) {
  return std::make_unique<UcxTransport>(ucx, std::move(options), clock);
}

}  // namespace coordd
