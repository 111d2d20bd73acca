// Two transports, of which each pair of ranks takes the same one.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/interfaces/edge_report.h"
#include "worker/interfaces/transport.h"

namespace coordd {

// The preferred one, if both ranks have it. Who has not says so in the store before it is
// connected; who has looks there with the first message to or from a rank, which is connected then:
// that one call may wait for the store (kAgreementTimeout). So the store outlives the transport.
// Not thread-safe, except for Abort.
class AgreedTransport final : public Transport {
 public:
  // What people are told of each rank, once it is chosen for it. No report: nothing.
  struct Told {
    std::shared_ptr<EdgeReport> report;
    std::string everywhere, preferred;  // EdgeReport's words for the two
  };
  // `preferred`: nullptr where this rank has none.
  AgreedTransport(std::unique_ptr<Transport> everywhere, std::unique_ptr<Transport> preferred,
                  Told told = {})
      : everywhere_(std::move(everywhere)),
        preferred_(std::move(preferred)),
        told_(std::move(told)) {}
  ~AgreedTransport() override;

  absl::string_view name() const override { return "agreed"; }
  // Connects both. A rank whose preferred one cannot be connected does without it, and logs why.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) override;
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override;
  bool Progress() override;
  void LookAtPeers() override;
  int Descriptor() override;
  void Abort() override;

 private:
  Transport* TransportTo(Rank rank);
  Transport* Choose(Rank rank);
  absl::StatusOr<bool> BothHavePreferred(Rank rank);
  void EndAll(const absl::Status& status);

  // Constant after construction; told of an Abort by any thread.
  const std::unique_ptr<Transport> everywhere_;
  const std::unique_ptr<Transport> preferred_;
  const Told told_;

  // Touched by the owner's thread.
  Store* store_ = nullptr;
  bool has_preferred_ = false;      // and it is connected
  std::vector<Transport*> chosen_;  // by rank; nullptr: nobody has asked yet
  absl::Status failure_;            // of the store, which did not say what a rank has
  std::vector<Done> unsent_;        // that end with that
  std::vector<Taken> untaken_;
};

}  // namespace coordd
