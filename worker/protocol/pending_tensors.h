// What the program has submitted and no plan has named yet.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/base/shared_spec.h"
#include "worker/protocol/slot_table.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// A message to coordd holds at most this much of tensors (session.proto).
inline constexpr int64_t kMaxReportBytes = 256 << 10;

// A tensor's name in its process set; the name is that of a spec that is kept beside it.
using TensorKey = std::pair<ProcessSetId, absl::string_view>;

// PURE; part of WorkerState. A tensor is unreported until the turn's end, then reported, perhaps
// withdrawn; whatever answers it erases it.
//
// Invariant: each tensor is there once under its name and once under its deadline, and among the
// unreported ones just when `reported` is false.
class PendingTensors {
 public:
  struct Tensor {
    SharedSpec spec;
    absl::Time submitted_at;
    absl::Time deadline;  // withdrawn: by when coordd has to answer
    bool reported = false;
    absl::Status withdrawn;  // why; OK: it is not
  };
  using Map = std::map<TensorId, Tensor>;
  using iterator = Map::iterator;

  // Adds a tensor as unreported. REQUIRES: it was not reported; no other one has its name.
  void Add(TensorId id, Tensor tensor);
  // Adds a tensor that is older than what has come since it was launched.
  void AddInOrder(TensorId id, Tensor tensor);
  SharedSpec Erase(iterator tensor);
  void Fail(iterator tensor, const absl::Status& why, const WorkerTurn& turn);
  void FailAll(const absl::Status& why, const WorkerTurn& turn);
  void FailUnreported(const absl::Status& why, const WorkerTurn& turn);
  // The tensors for which `which(spec)` holds.
  template <typename F>
  void FailThose(F which, const absl::Status& why, const WorkerTurn& turn) {
    for (auto tensor = tensors_.begin(); tensor != tensors_.end();) {
      const auto next = std::next(tensor);
      if (which(*tensor->second.spec)) Fail(tensor, why, turn);
      tensor = next;
    }
  }

  // Fails the tensors that are withdrawn, each with its own reason: coordd's answer will not come.
  void FailWithdrawn(const WorkerTurn& turn);

  iterator Find(TensorId id) { return tensors_.find(id); }
  iterator Find(ProcessSetId process_set, absl::string_view name);
  bool Contains(ProcessSetId process_set, absl::string_view name) const {
    return !by_name_.empty() && by_name_.contains(TensorKey(process_set, name));
  }
  iterator end() { return tensors_.end(); }
  // By age.
  const Map& tensors() const { return tensors_; }
  bool empty() const { return tensors_.empty(); }
  size_t size() const { return tensors_.size(); }

  absl::Time next_deadline() const {
    return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
  }
  // The tensors whose deadline has come, the earliest first.
  std::vector<TensorId> DueBy(absl::Time now) const;
  void SetDeadline(iterator tensor, absl::Time deadline);

  // Until the join ends on all ranks this rank has no more data.
  bool has_joined() const { return ToInt(join_) != 0; }
  bool join_is_unreported() const { return has_joined() && !tensors_.at(join_).reported; }
  // Takes back what coordd has been told of the join; whether it had been. One that is withdrawn
  // stays: coordd answers it.
  bool TakeJoinBack();

  size_t unreported() const { return unreported_.size(); }
  // Goes on as if coordd had heard of no tensor.
  void ForgetReports();
  // The messages that report what is unreported, except for the join if it waits.
  std::vector<v1::WorkerMessage> Report(SlotTable& slots, bool join_waits);

  // Withdraws them, and gives the messages that ask coordd to. REQUIRES: they are reported.
  std::vector<v1::WorkerMessage> Withdraw(const std::vector<TensorId>& tensors,
                                          const absl::Status& why, absl::Time now);
  // Withdraws anew, for another coordd, everything that was withdrawn before.
  std::vector<v1::WorkerMessage> WithdrawAnew(absl::Time now);

  // INTERNAL: the invariant does not hold; says where. For tests.
  absl::Status CheckConsistency() const;

 private:
  void Insert(TensorId id, Tensor tensor);
  void AppendWithdrawn(const std::vector<TensorId>& tensors, absl::string_view why, absl::Time now,
                       std::vector<v1::WorkerMessage>& messages);

  Map tensors_;  // by age
  absl::flat_hash_map<TensorKey, TensorId> by_name_;
  std::set<std::pair<absl::Time, TensorId>> deadlines_;
  std::vector<TensorId> unreported_;  // in order of submission; a join is sent last
  TensorId join_;                     // submitted and not ended; 0: this rank has data
};

}  // namespace coordd
