// The transport over UCX: ucx_transport.cc connects, sends and ends, ucx_transport_receive.cc takes
// what comes. (io; only where UCX is built in)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "worker/interfaces/transport.h"
#include "worker/transport/ucx/message_inbox.h"
#include "worker/transport/ucx/ucx_api.h"
#include "worker/transport/ucx/ucx_context.h"
#include "worker/transport/ucx/ucx_message.h"
#include "worker/transport/ucx/ucx_peers.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace coordd {

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
  // Delivers a message to this receive, from where it is.
  void Deliver(Operation& operation, const std::byte* bytes, size_t size_bytes);
  void Deliver(Operation& operation, KeptMessage message);
  // Fetches a message for an operation. False: the operation has ended instead, and nothing gets
  // the message.
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
  void EndByClosing();
  void Release(const std::list<KeptMessage>& kept);
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
  absl::Status dropped_;     // OK: alive; else the end of all operations
  bool is_stopped_ = false;  // dropped, and UCX gets no chance to do anything any more
  UcxPeers peers_{ucx_, options_, clock_};
  std::list<Operation> pending_;
  std::list<Operation> spare_;  // for their memory
  MessageInbox inbox_;
  std::vector<Finished> finished_;  // for the next Progress
  bool moved_ = false;              // something was taken in this Progress
  uint32_t turns_ = 0;              // of Progress
  UcxContext context_;  // last: it ends first, and its callbacks reach what stands above
};

}  // namespace coordd
