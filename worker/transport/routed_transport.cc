#include "worker/transport/routed_transport.h"

#include <utility>

#include "common/base/status_macros.h"

namespace coordd {

absl::Status RoutedTransport::Connect(const GroupLayout& layout, Store& store,
                                      absl::Time deadline) {
  const int32_t node = layout.node_of(layout.self());
  first_local_rank_ = ToInt(layout.first_rank_of(node));
  end_local_rank_ = first_local_rank_ + layout.ranks_on(node);
  COORDD_RETURN_IF_ERROR(between_nodes_->Connect(layout, store, deadline));
  return within_node_->Connect(layout, store, deadline);
}

Transport& RoutedTransport::TransportTo(Rank rank) {
  const bool local = ToInt(rank) >= first_local_rank_ && ToInt(rank) < end_local_rank_;
  return local ? *within_node_ : *between_nodes_;
}

void RoutedTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  TransportTo(to).Send(to, tag, bytes, std::move(done));
}

void RoutedTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  TransportTo(from).Receive(from, tag, bytes, std::move(done));
}

void RoutedTransport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing,
                                     Taken taken) {
  TransportTo(from).ReceiveInPlace(from, tag, landing, std::move(taken));
}

void RoutedTransport::LookAtPeers() {
  within_node_->LookAtPeers();
  between_nodes_->LookAtPeers();
}

// A rank without neighbours hears of nothing inside its node.
int RoutedTransport::Descriptor() {
  return end_local_rank_ - first_local_rank_ == 1 ? between_nodes_->Descriptor() : -1;
}

bool RoutedTransport::Progress() {
  const bool within = within_node_->Progress();
  return between_nodes_->Progress() || within;
}

void RoutedTransport::Abort() {
  within_node_->Abort();
  between_nodes_->Abort();
}

}  // namespace coordd
