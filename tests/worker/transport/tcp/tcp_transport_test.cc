#include "worker/transport/tcp/tcp_transport.h"

#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/transport_conformance.h"
#include "worker/host/host_backend.h"
#include "worker/transport/agreed_transport.h"
#include "worker/transport/routed_transport.h"
#include "worker/transport/shm/shm_transport.h"

namespace coordd {
namespace {

std::unique_ptr<Transport> InPlain() {
  return std::make_unique<TcpTransport>(
      TcpTransportOptions{.local_address = "127.0.0.1", .ports = {}, .encrypts = false});
}

std::unique_ptr<Transport> Encrypted() {
  return std::make_unique<TcpTransport>(
      TcpTransportOptions{.local_address = "127.0.0.1", .ports = {}, .encrypts = true});
}

constexpr int32_t kConnections = 4;

std::unique_ptr<Transport> Several() {
  return std::make_unique<TcpTransport>(
      TcpTransportOptions{.local_address = "127.0.0.1", .ports = {}, .connections = kConnections});
}

std::unique_ptr<Transport> SeveralEncrypted() {
  return std::make_unique<TcpTransport>(TcpTransportOptions{
      .local_address = "127.0.0.1", .ports = {}, .encrypts = true, .connections = kConnections});
}

// Numbers the messages of each tag, so that they go over all connections.
class InSegments final : public Transport {
 public:
  explicit InSegments(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  absl::string_view name() const override { return transport_->name(); }
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override {
    return transport_->Connect(layout, store, deadline);
  }
  void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) override {
    transport_->Send(to, Next(sent_, to, tag), bytes, std::move(done));
  }
  void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) override {
    transport_->Receive(from, Next(received_, from, tag), bytes, std::move(done));
  }
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override {
    transport_->ReceiveInPlace(from, Next(received_, from, tag), landing, std::move(taken));
  }
  bool Progress() override { return transport_->Progress(); }
  void LookAtPeers() override { transport_->LookAtPeers(); }
  int Descriptor() override { return transport_->Descriptor(); }
  void Abort() override { transport_->Abort(); }

 private:
  using Counts = std::map<std::pair<Rank, uint64_t>, int64_t>;
  // The first one of a tag has the number of its sequence.
  static Tag Next(Counts& counts, Rank peer, Tag tag) {
    tag.segment = tag.sequence + counts[{peer, tag.Encode()}]++;
    return tag;
  }

  const std::unique_ptr<Transport> transport_;
  Counts sent_, received_;
};

std::unique_ptr<Transport> SeveralInTurn() { return std::make_unique<InSegments>(Several()); }

std::unique_ptr<Transport> SeveralEncryptedInTurn() {
  return std::make_unique<InSegments>(SeveralEncrypted());
}

std::unique_ptr<Transport> Routed() {
  return std::make_unique<RoutedTransport>(std::make_unique<ShmTransport>(), InPlain());
}

std::unique_ptr<Transport> Agreed() {
  return std::make_unique<AgreedTransport>(InPlain(), nullptr);
}

// Nodes of two ranks, and a node of one at the end of an odd world.
GroupLayout Pairs(Rank self, int32_t world_size) {
  std::vector<NodeRun> nodes;
  if (world_size > 1) nodes.push_back({world_size / 2, 2});
  if (world_size % 2 == 1) nodes.push_back({1, 1});
  return GroupLayout(self, nodes);
}

TransportCase TransportOf(std::string name, std::unique_ptr<Transport> (*make)()) {
  return {.name = std::move(name), .new_group = [make](int32_t) { return make; }, .layout = Pairs};
}

BackendCase BackendOf(std::string name, std::unique_ptr<Transport> (*make)()) {
  return {.name = std::move(name),
          .new_group =
              [make](int32_t) {
                return [make]() -> std::unique_ptr<CollectiveBackend> {
                  return std::make_unique<HostBackend>(make());
                };
              },
          .layout = Pairs};
}

std::string NameOf(const auto& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values(TransportOf("InPlain", InPlain),
                                         TransportOf("Encrypted", Encrypted),
                                         TransportOf("Several", SeveralInTurn),
                                         TransportOf("SeveralEncrypted", SeveralEncryptedInTurn),
                                         TransportOf("Agreed", Agreed),
                                         TransportOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

INSTANTIATE_TEST_SUITE_P(HostOverTcp, CollectiveBackendConformance,
                         testing::Values(BackendOf("InPlain", InPlain),
                                         BackendOf("Encrypted", Encrypted),
                                         BackendOf("Several", Several),
                                         BackendOf("Routed", Routed)),
                         [](const auto& info) { return NameOf(info); });

}  // namespace
}  // namespace coordd
