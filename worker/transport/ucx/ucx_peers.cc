#include "worker/transport/ucx/ucx_peers.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/peer_addresses.h"
#include "worker/interfaces/peer_status.h"
#include "worker/transport/ucx/ucx_message.h"

namespace coordd {
namespace {

constexpr absl::string_view kUcxKeyPrefix = "ucx";

// A rank's address is in the store before the rank reports anything ready, so this is a round trip,
// unless the store is in trouble.
constexpr absl::Duration kAddressTimeout = absl::Seconds(10);
// For buffered bytes and goodbyes to leave; a peer that hangs must not hold up this rank's end.
constexpr absl::Duration kFlushTimeout = absl::Seconds(1);
// How often it is looked at who keeps this rank waiting.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
// Rounds of UCX in which the beginnings and ends of connections are read: so many with nothing, or
// where something comes all the time, so many.
constexpr int kQuietRounds = 8, kReadRounds = 256;

}  // namespace

absl::Status UcxPeers::Publish(UcxContext& context, const GroupLayout& layout, Store& store,
                               absl::Time deadline) {
  worker_ = context.worker();
  store_ = &store;
  world_size_ = layout.size();
  says_hello_ = context.message_bytes_max() > 0;
  hello_ = static_cast<uint32_t>(ToInt(layout.self()));
  COORDD_RETURN_IF_ERROR(context.Handle(kHello, &UcxPeers::OnHello, this));
  COORDD_ASSIGN_OR_RETURN(std::string address, context.Address());
  probe_port_ = OpenProbePort(layout);
  if (probe_port_.has_value()) address = WithProbePort(address, probe_port_->address());
  return store.Set(AddressKey(kUcxKeyPrefix, layout.self()), std::move(address), deadline);
}

// Where it is known which way UCX's messages go.
std::optional<ProbePort> UcxPeers::OpenProbePort(const GroupLayout& layout) const {
  const Environment& environment = options_.environment;
  if (options_.local_address.empty() || environment.contains("UCX_NET_DEVICES") ||
      environment.contains("UCX_TLS")) {
    return std::nullopt;
  }
  const int32_t node = layout.node_of(layout.self());
  const int32_t index = ToInt(layout.self()) - ToInt(layout.first_rank_of(node));
  return ProbePort::OpenFor(options_.local_address, options_.ports, index, layout.ranks_on(node));
}

UcxPeer& UcxPeers::Of(Rank rank, bool connects) {
  UcxPeer& peer = peers_[rank];
  peer.peers = this;
  peer.rank = rank;
  if (connects && peer.stage == UcxPeer::Stage::kUnknown) {
    peer.stage = UcxPeer::Stage::kWanted;
    has_to_connect_ = true;
  }
  return peer;
}

std::vector<UcxPeer*> UcxPeers::All() {
  std::vector<UcxPeer*> all;
  for (auto& [rank, peer] : peers_) all.push_back(&peer);
  return all;
}

// UCX up to 1.13 ends the whole process when a peer is killed in the wrong moment while the two get
// to know each other. By an assertion in wireup_ep.c, when endpoints have queued messages: so
// nothing is sent, and no endpoint is dropped by Abort, before the end of a flush tells that there
// is a connection. By one in ucp_request.c, when it has an answer for the peer, which waits for the
// peer to confirm a TCP connection. The question is asked by the first message that is not a short
// one, so nothing else is sent before a short one of the peer's, its hello, has said that its
// connection is confirmed: it can answer at once, and so can this rank. By one in tcp_ep.c, when an
// endpoint is made over a connection of the peer's whose end the kernel knows, and UCX does not: so
// endpoints are made when nothing is left to be read.
void UcxPeers::Connect() {
  if (!std::exchange(has_to_connect_, false)) return;
  struct Wanted {
    UcxPeer* peer;
    std::string address;
  };
  std::vector<Wanted> wanted;
  for (UcxPeer* peer : All()) {
    if (peer->stage != UcxPeer::Stage::kWanted) continue;
    peer->stage = UcxPeer::Stage::kConnecting;
    absl::StatusOr<std::string> address =
        store_->Get(AddressKey(kUcxKeyPrefix, peer->rank), clock_.Now() + kAddressTimeout);
    if (address.ok()) {
      wanted.push_back({peer, *std::move(address)});
    } else {
      Lose(*peer, absl::StrCat("its UCX address: ", address.status().message()));
    }
  }
  for (const Wanted& each : wanted) {
    ReadAll();
    MakeEndpoint(*each.peer, each.address);
  }
  Greet();
}

void UcxPeers::ReadAll() {
  int quiet = 0;
  for (int i = 0; i < kReadRounds && quiet < kQuietRounds; ++i)
    quiet = ucx_.worker_progress(worker_) == 0 ? quiet + 1 : 0;
}

void UcxPeers::Greet() {
  for (UcxPeer* peer : All()) {
    if (peer->stage != UcxPeer::Stage::kGreeting || !peer->lost.ok()) continue;
    if (says_hello_ && !std::exchange(peer->is_greeted, true)) SayHello(*peer);
    if (says_hello_ && !peer->has_greeted) continue;
    peer->stage = UcxPeer::Stage::kConnected;
    newly_connected_.push_back(peer);
  }
}

void UcxPeers::MakeEndpoint(UcxPeer& peer, const std::string& address) {
  // UCX does not look beyond the end of what it has packed.
  peer.watched.AskAt(ProbePortOf(address));
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxPeers::OnEndpointError, &peer};
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return StartConnecting(peer);
  peer.endpoint = nullptr;
  Lose(peer, ucx_.Error("ucp_ep_create", status).message());
}

void UcxPeers::Lose(UcxPeer& peer, absl::string_view why) {
  if (peer.lost.ok()) peer.lost = PeerLost(peer.rank, why);
  has_lost_ = true;
}

void UcxPeers::StartConnecting(UcxPeer& peer) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxPeers::OnFlushed;
  params.user_data = &peer;
  const ucs_status_ptr_t request = ucx_.ep_flush_nbx(peer.endpoint, &params);
  if (UCS_PTR_IS_PTR(request)) {
    peer.connecting = request;
  } else {
    Flushed(peer, UCS_PTR_STATUS(request));
  }
}

void UcxPeers::OnFlushed(void* request, ucs_status_t status, void* user_data) {
  UcxPeer& peer = *static_cast<UcxPeer*>(user_data);
  peer.connecting = nullptr;
  peer.peers->ucx_.request_free(request);
  peer.peers->Flushed(peer, status);
}

void UcxPeers::Flushed(UcxPeer& peer, ucs_status_t status) {
  if (status != UCS_OK) return OnEndpointError(&peer, peer.endpoint, status);
  peer.stage = UcxPeer::Stage::kGreeting;
  has_to_connect_ = true;
}

void UcxPeers::SayHello(UcxPeer& peer) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  auto send = [&] {
    return ucx_.am_send_nbx(peer.endpoint, kHello, &hello_, sizeof(hello_), nullptr, 0, &params);
  };
  ucs_status_ptr_t request = send();
  if (UCS_PTR_IS_ERR(request) && UCS_PTR_STATUS(request) == UCS_ERR_NO_RESOURCE) {
    // This UCX has no short messages. (One with CUDA, of memory it has to look at first.)
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.send = &UcxPeers::OnHelloSent;
    params.user_data = this;
    request = send();
  }
  if (UCS_PTR_IS_ERR(request)) OnEndpointError(&peer, peer.endpoint, UCS_PTR_STATUS(request));
}

void UcxPeers::OnHelloSent(void* request, ucs_status_t, void* user_data) {
  static_cast<UcxPeers*>(user_data)->ucx_.request_free(request);
}

// Only takes note: UCX is in the middle of its progress.
ucs_status_t UcxPeers::OnHello(void* peers, const void* header, size_t header_bytes, void*, size_t,
                               const ucp_am_recv_param_t*) {
  auto& self = *static_cast<UcxPeers*>(peers);
  uint32_t rank = 0;
  COORDD_CHECK(header_bytes == sizeof(rank));
  std::memcpy(&rank, header, sizeof(rank));
  COORDD_CHECK(rank < static_cast<uint32_t>(self.world_size_));
  self.Of(Rank{static_cast<int32_t>(rank)}, /*connects=*/true).has_greeted = true;
  self.has_to_connect_ = true;
  return UCS_OK;
}

// Only takes note: UCX is in the middle of its progress.
void UcxPeers::OnEndpointError(void* user_data, ucp_ep_h, ucs_status_t status) {
  UcxPeer& peer = *static_cast<UcxPeer*>(user_data);
  peer.peers->Lose(peer, peer.peers->ucx_.Error("its connection ended", status).message());
}

std::vector<UcxPeer*> UcxPeers::TakeLost() {
  has_lost_ = false;
  std::vector<UcxPeer*> lost;
  for (auto& [rank, peer] : peers_) {
    if (peer.lost.ok() || peer.end_handled) continue;
    peer.end_handled = true;
    Close(peer, /*force=*/true);
    lost.push_back(&peer);
  }
  return lost;
}

bool UcxPeers::lost_any() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& entry) { return !entry.second.lost.ok(); });
}

bool UcxPeers::IsTimeToWatch() {
  const absl::Time now = clock_.Now();
  if (now < next_watch_) return false;
  next_watch_ = now + kWatchInterval;
  return true;
}

void UcxPeers::Watch(const std::set<const UcxPeer*>& waited_for) {
  const absl::Time now = clock_.Now();
  for (auto& [rank, peer] : peers_) {
    if (!peer.lost.ok() || peer.endpoint == nullptr) continue;
    const WatchedPeer::News news{
        .moved = std::exchange(peer.ended_before, peer.ended) != peer.ended,
        .waits = waited_for.contains(&peer),
        .connects = peer.connecting != nullptr};
    const std::optional<std::string> silent = peer.watched.Look(news, now);
    if (!silent.has_value()) continue;
    peer.lost = PeerSilent(peer.rank, *silent);
    has_lost_ = true;
  }
}

void UcxPeers::Close(UcxPeer& peer, bool force) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0;  // else it flushes
  const ucs_status_ptr_t request = ucx_.ep_close_nbx(peer.endpoint, &params);
  peer.endpoint = nullptr;
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

void UcxPeers::ProgressUntil(absl::FunctionRef<bool()> condition, absl::Duration timeout) {
  const absl::Time deadline = clock_.Now() + timeout;
  while (true) {
    ucx_.worker_progress(worker_);
    std::erase_if(closing_, [this](void* request) {
      if (ucx_.request_check_status(request) == UCS_INPROGRESS) return false;
      ucx_.request_free(request);
      return true;
    });
    if (condition() || clock_.Now() >= deadline) return;
  }
}

void UcxPeers::CloseAll() {
  ProgressUntil(
      [this] {
        return std::none_of(peers_.begin(), peers_.end(),
                            [](const auto& entry) { return entry.second.connecting != nullptr; });
      },
      kFlushTimeout);
  for (auto& [rank, peer] : peers_) Close(peer, /*force=*/!peer.lost.ok());
  ProgressUntil([this] { return closing_.empty(); }, kFlushTimeout);
}

void UcxPeers::CloseAllAtOnce() {
  for (auto& [rank, peer] : peers_) Close(peer, /*force=*/true);
}

void UcxPeers::ForgetRequests() {
  for (auto& [rank, peer] : peers_)
    if (peer.connecting != nullptr) ucx_.request_free(peer.connecting);
  for (void* request : closing_) ucx_.request_free(request);
}

}  // namespace coordd
