#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "worker/base/copy_bytes.h"
#include "worker/transport/ucx/ucx_transport_impl.h"

namespace coordd {

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

void UcxTransport::OnFetched(void* request, ucs_status_t status, size_t, void* user_data) {
  Operation& operation = *static_cast<Operation*>(user_data);
  if (TransportOf(operation).is_stopped_) return;
  operation.request = request;
  TransportOf(operation).Finish(operation, TransportOf(operation).StatusOf(operation, status));
}

absl::Status UcxTransport::SizeStatus(const Operation& operation, size_t size_bytes) const {
  if (size_bytes == operation.size_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("message from rank ", ToInt(operation.peer->rank),
                                          " has ", size_bytes, " bytes, expected ",
                                          operation.size_bytes));
}

}  // namespace coordd
