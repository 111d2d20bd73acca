// A backend that makes one mistake: a decorator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "worker/interfaces/collective_backend.h"

namespace coordd {

// Changes one byte of the first result of this kind and size on its rank.
struct Fault {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int32_t rank = 0;
  size_t output_bytes = 0;
  size_t byte = 0;
};

class FaultyBackend final : public CollectiveBackend {
 public:
  FaultyBackend(std::unique_ptr<CollectiveBackend> good, Fault fault)
      : good_(std::move(good)), fault_(fault) {}

  absl::string_view name() const override { return good_->name(); }
  bool Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const override {
    return good_->Supports(memory, dtype, kind);
  }
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override {
    faulty_ = ToInt(layout.self()) == fault_.rank;
    return good_->Connect(layout, store, deadline);
  }
  absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) override {
    return good_->DefineGroup(group, ranks);
  }
  void EndGroup(ProcessSetId group) override { good_->EndGroup(group); }
  void EndLane(LaneId lane) override { good_->EndLane(lane); }
  absl::Status Launch(CollectiveArgs args, Done done) override {
    if (!faulty_ || args.kind != fault_.kind || args.output.size() != fault_.output_bytes)
      return good_->Launch(std::move(args), std::move(done));
    faulty_ = false;
    std::byte* const wrong = args.output.data() + fault_.byte;
    return good_->Launch(std::move(args),
                         [wrong, done = std::move(done)](absl::Status status) mutable {
                           *wrong ^= std::byte{0x41};
                           std::move(done)(std::move(status));
                         });
  }
  bool Progress() override { return good_->Progress(); }
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override {
    return good_->AllocateFusionBuffer(size_bytes);
  }
  void Abort() override { good_->Abort(); }

 private:
  const std::unique_ptr<CollectiveBackend> good_;
  const Fault fault_;
  bool faulty_ = false;  // its time is still to come
};

}  // namespace coordd
