// Two transports of which all ranks of a generation take the same one.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/interfaces/transport.h"

namespace coordd {

// The preferred one, if all ranks have it. Who has not says so in the store before it is connected;
// the others look there with their first message, which is when all ranks are connected: that one
// call may wait for the store (kAgreementTimeout). Until then both are ready to be reached. So the
// store outlives the transport. Not thread-safe, except for Abort.
class AgreedTransport final : public Transport {
 public:
  // `preferred`: nullptr where this rank has none.
  AgreedTransport(std::unique_ptr<Transport> everywhere, std::unique_ptr<Transport> preferred)
      : everywhere_(std::move(everywhere)), preferred_(std::move(preferred)) {}
  ~AgreedTransport() override;

  // Of the one that is taken; "agreed": that is not known yet.
  absl::string_view name() const override;
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
  Transport* Chosen();
  void Choose();
  void EndAll();

  // Constant after construction; told of an Abort by any thread.
  const std::unique_ptr<Transport> everywhere_;
  const std::unique_ptr<Transport> preferred_;

  // Touched by the owner's thread.
  Store* store_ = nullptr;
  bool has_preferred_ = false;    // and it is connected
  Transport* chosen_ = nullptr;   // nullptr: nobody has asked yet, or `failure_` says why there is none
  absl::Status failure_;
  std::vector<Done> unsent_;      // that end with `failure_`
  std::vector<Taken> untaken_;
};

}  // namespace coordd
