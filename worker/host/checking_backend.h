// A backend whose every result is compared with a reference (result_check.h): a decorator. (io)
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/host/result_check.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

struct CheckingOptions {
  double tolerance = 1e-6;
  std::string directory = ".";  // where a mismatch is written to
};

// The first wrong result ends its collective with DATA_LOSS, on the rank that has it: the status
// names rank, tensor, index, what was got, what was expected, and the file in which both vectors
// are. On all ranks or on none: each collective is followed by those of its check, on the same
// lane, and the next one of the lane begins behind them. Connect says so if a rank does not.
//
// A comm's collectives are launched here too, instead of being run by its caller's thread on a lane
// that the caller alone advances: OpenMappedLane has none to give.
class CheckingBackend final : public CollectiveBackend {
 public:
  CheckingBackend(std::unique_ptr<CollectiveBackend> checked, CheckingOptions options);
  ~CheckingBackend() override;

  absl::string_view name() const override { return checked_->name(); }
  bool Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const override {
    return checked_->Supports(memory, dtype, kind);
  }
  // FAILED_PRECONDITION: a rank does not check, or with another tolerance.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) override;
  void EndGroup(ProcessSetId group) override;
  void EndLane(LaneId lane) override;
  absl::Status Launch(CollectiveArgs args, Done done) override;
  std::shared_ptr<NodeArena> arena() const override { return checked_->arena(); }
  std::shared_ptr<EdgeReport> edges() const override { return checked_->edges(); }
  bool Progress() override;
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override {
    return checked_->AllocateFusionBuffer(size_bytes);
  }
  void Abort() override { checked_->Abort(); }

 private:
  static constexpr size_t kMaxQueued = 4096;

  struct Group {
    int32_t self = 0, size = 1;
  };
  struct Batch {
    CollectiveArgs args;
    Done done;
    Group group;
  };
  struct Lane {
    std::deque<Batch> queue;           // the front one is running
    std::optional<ResultCheck> check;  // of the front one
    bool running = false;              // the backend has one of it
    bool begun = false;                // the front one was launched
    absl::Status status;               // of the last one that ended
  };
  using Finished = std::vector<std::pair<Done, absl::Status>>;

  bool Advance(Lane& lane, Finished& finished);
  void Begin(Lane& lane);
  void Run(Lane& lane, CollectiveArgs args);
  absl::Status Wrong(const Batch& batch, const ResultCheck& check) const;

  // Constant after construction.
  const CheckingOptions options_;

  // Touched by the owner's thread (checked_->Abort by any).
  std::unique_ptr<CollectiveBackend> checked_;
  int32_t rank_ = 0;
  std::map<ProcessSetId, Group> groups_;
  std::map<LaneId, Lane> lanes_;
};

}  // namespace coordd
