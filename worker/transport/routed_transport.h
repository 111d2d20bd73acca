// Two transports as one: ranks of this node by the one, all others by the other.
#pragma once

#include <memory>

#include "worker/interfaces/transport.h"

namespace coordd {

class RoutedTransport final : public Transport {
 public:
  RoutedTransport(std::unique_ptr<Transport> within_node, std::unique_ptr<Transport> between_nodes)
      : within_node_(std::move(within_node)), between_nodes_(std::move(between_nodes)) {}

  absl::string_view name() const override { return "routed"; }
  // Connects one transport after the other, with one deadline.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) override;
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override;
  bool Progress() override;
  void LookAtPeers() override;
  int Descriptor() override;
  void Abort() override;

 private:
  Transport& TransportTo(Rank rank);

  // Constant after Connect.
  std::unique_ptr<Transport> within_node_;
  std::unique_ptr<Transport> between_nodes_;
  int32_t first_local_rank_ = 0;
  int32_t end_local_rank_ = 0;
};

}  // namespace coordd
