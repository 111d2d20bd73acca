// Endpoints of UCX to other ranks: made, watched, lost and closed. (io; only where UCX is built in)
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/net/address.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"
#include "worker/interfaces/group_layout.h"
#include "worker/transport/peers/peer_probe.h"
#include "worker/transport/peers/watched_peer.h"
#include "worker/transport/ucx/ucx_api.h"
#include "worker/transport/ucx/ucx_context.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace coordd {

class UcxPeers;
struct UcxOperation;  // ucx_transport_impl.h's

// Another rank that anything was exchanged with.
struct UcxPeer {
  // Whether messages need not wait any more. A lost peer is as good as connected: messages to it
  // end at once.
  bool is_connected() const { return stage == Stage::kConnected || !lost.ok(); }

  enum class Stage { kUnknown, kWanted, kConnecting, kGreeting, kConnected };

  UcxPeers* peers = nullptr;
  Rank rank;
  Stage stage = Stage::kUnknown;
  ucp_ep_h endpoint = nullptr;  // nullptr: not made yet, or closed
  void* connecting = nullptr;   // request of the first flush; nullptr: none is pending
  bool has_greeted = false;     // its hello has come
  bool is_greeted = false;      // this rank's has been sent
  absl::Status lost;            // OK: the peer is there
  bool end_handled = false;     // of a lost peer: TakeLost has told of it
  WatchedPeer watched;
  int64_t ended_before = 0;  // operations, at the last look

  // The transport's.
  std::deque<UcxOperation*> held;  // Sends until it is connected
  uint64_t sent = 0;               // messages
  uint64_t eager_bytes = 0;        // of messages that it may have to keep
  uint64_t proven_bytes = 0;       // of these, it is known to keep no more
  uint64_t taken_bytes = 0;        // of what it has sent so: this rank keeps no more
  int64_t ended = 0;               // operations
};

// One thread uses it, that of the transport's owner.
class UcxPeers {
 public:
  // The arguments outlive this object.
  UcxPeers(const UcxFunctions& ucx, const UcxTransportOptions& options, Clock& clock)
      : ucx_(ucx), options_(options), clock_(clock) {}
  UcxPeers(const UcxPeers&) = delete;
  UcxPeers& operator=(const UcxPeers&) = delete;

  // Puts this rank's address into the store, which outlives it. To be called once, first.
  absl::Status Publish(UcxContext& context, const GroupLayout& layout, Store& store,
                       absl::Time deadline);

  // Its address stays. The first call that `connects` makes Connect make an endpoint.
  UcxPeer& Of(Rank rank, bool connects);
  std::vector<UcxPeer*> All();
  // Outside of progress: takes those that are to be connected as far as it can, which may wait for
  // the store, and progress.
  void Connect();
  // The peers to which messages can be sent since the last call.
  std::vector<UcxPeer*> TakeConnected() { return std::exchange(newly_connected_, {}); }
  // Whether peers are lost since the last call. Their endpoints are closed.
  bool has_lost() const { return has_lost_; }
  std::vector<UcxPeer*> TakeLost();
  bool lost_any() const;  // ever
  // Looks, ten times a second at most, whether those that are waited for are still there.
  bool IsTimeToWatch();
  void Watch(const std::set<const UcxPeer*>& waited_for);

  void Close(UcxPeer& peer, bool force);
  // Progresses the worker until `condition` or for `timeout`.
  void ProgressUntil(absl::FunctionRef<bool()> condition, absl::Duration timeout);
  // Closes all endpoints: gives them a second to connect, and one to end.
  void CloseAll();
  // Closes all endpoints by force, and without progress.
  void CloseAllAtOnce();
  // Has what is still under way call nobody from here on.
  void ForgetRequests();

 private:
  void MakeEndpoint(UcxPeer& peer, const std::string& address);
  void ReadAll();
  void Greet();
  void StartConnecting(UcxPeer& peer);
  void Flushed(UcxPeer& peer, ucs_status_t status);
  void Lose(UcxPeer& peer, absl::string_view why);
  void SayHello(UcxPeer& peer);
  std::optional<ProbePort> OpenProbePort(const GroupLayout& layout) const;

  static void OnFlushed(void* request, ucs_status_t status, void* user_data);
  static void OnHelloSent(void* request, ucs_status_t status, void* user_data);
  static ucs_status_t OnHello(void* peers, const void* header, size_t header_bytes, void* data,
                              size_t size_bytes, const ucp_am_recv_param_t* param);
  static void OnEndpointError(void* user_data, ucp_ep_h endpoint, ucs_status_t status);

  // Constant after construction.
  const UcxFunctions& ucx_;
  const UcxTransportOptions& options_;
  Clock& clock_;

  // Touched by the owner's thread.
  ucp_worker_h worker_ = nullptr;
  Store* store_ = nullptr;
  int32_t world_size_ = 0;
  bool says_hello_ = false;        // the network is TCP
  uint32_t hello_ = 0;             // this rank
  bool has_to_connect_ = false;    // somebody, by a step
  std::map<Rank, UcxPeer> peers_;  // stable addresses
  bool has_lost_ = false;
  std::vector<UcxPeer*> newly_connected_;
  std::vector<void*> closing_;           // requests of endpoints that are being closed
  std::optional<ProbePort> probe_port_;  // of this rank
  absl::Time next_watch_ = absl::InfinitePast();
};

}  // namespace coordd
