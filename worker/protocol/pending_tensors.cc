#include "worker/protocol/pending_tensors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/execute/worker_errors.h"
#include "worker/protocol/process_set_state.h"

namespace coordd {
namespace {

// Framing around one tensor of a report: tag and length.
constexpr int64_t kTensorFramingBytes = 8;

// Fills messages one after the other.
class Messages {
 public:
  // The one with room for so many bytes more.
  v1::WorkerMessage& For(int64_t bytes) {
    if (messages_.empty() || (bytes_ > 0 && bytes_ + bytes > kMaxReportBytes)) {
      messages_.emplace_back();
      bytes_ = 0;
    }
    bytes_ += bytes;
    return messages_.back();
  }
  std::vector<v1::WorkerMessage> Take() { return std::move(messages_); }

 private:
  std::vector<v1::WorkerMessage> messages_;
  int64_t bytes_ = 0;
};

}  // namespace

void PendingTensors::Insert(TensorId id, Tensor tensor) {
  if (tensor.spec->kind == CollectiveKind::kJoin) join_ = id;
  deadlines_.emplace(tensor.deadline, id);
  const auto added = tensors_.emplace(id, std::move(tensor));
  const TensorSpec& spec = *added.first->second.spec;
  by_name_.emplace(TensorKey(spec.process_set, spec.name), id);
}

void PendingTensors::Add(TensorId id, Tensor tensor) {
  unreported_.push_back(id);
  Insert(id, std::move(tensor));
}

void PendingTensors::AddInOrder(TensorId id, Tensor tensor) {
  Add(id, std::move(tensor));
  std::sort(unreported_.begin(), unreported_.end());
}

SharedSpec PendingTensors::Erase(iterator tensor) {
  const TensorId id = tensor->first;
  if (!tensor->second.reported) std::erase(unreported_, id);
  if (id == join_) join_ = TensorId{};
  SharedSpec spec = std::move(tensor->second.spec);
  by_name_.erase(TensorKey(spec->process_set, spec->name));
  deadlines_.erase({tensor->second.deadline, id});
  tensors_.erase(tensor);
  return spec;
}

void PendingTensors::Fail(iterator tensor, const absl::Status& why, const WorkerTurn& turn) {
  turn.out.push_back(FailTensor{tensor->first, ForTensor(tensor->second.spec->name, why)});
  Erase(tensor);
}

void PendingTensors::FailAll(const absl::Status& why, const WorkerTurn& turn) {
  for (const auto& [id, tensor] : tensors_)
    turn.out.push_back(FailTensor{id, ForTensor(tensor.spec->name, why)});
  *this = PendingTensors();
}

void PendingTensors::FailUnreported(const absl::Status& why, const WorkerTurn& turn) {
  for (TensorId id : std::vector<TensorId>(unreported_)) Fail(tensors_.find(id), why, turn);
}

void PendingTensors::FailWithdrawn(const WorkerTurn& turn) {
  for (auto tensor = tensors_.begin(); tensor != tensors_.end();) {
    const auto next = std::next(tensor);
    if (!tensor->second.withdrawn.ok()) Fail(tensor, tensor->second.withdrawn, turn);
    tensor = next;
  }
}

PendingTensors::iterator PendingTensors::Find(ProcessSetId process_set, absl::string_view name) {
  const auto found = by_name_.find(TensorKey(process_set, name));
  return found == by_name_.end() ? tensors_.end() : tensors_.find(found->second);
}

std::vector<TensorId> PendingTensors::DueBy(absl::Time now) const {
  std::vector<TensorId> due;
  for (const auto& [deadline, id] : deadlines_) {
    if (deadline > now) break;
    due.push_back(id);
  }
  return due;
}

void PendingTensors::SetDeadline(iterator tensor, absl::Time deadline) {
  deadlines_.erase({tensor->second.deadline, tensor->first});
  tensor->second.deadline = deadline;
  deadlines_.emplace(deadline, tensor->first);
}

bool PendingTensors::TakeJoinBack() {
  if (!has_joined()) return false;
  Tensor& join = tensors_.at(join_);
  if (!join.reported || !join.withdrawn.ok()) return false;
  join.reported = false;
  unreported_.push_back(join_);
  return true;
}

void PendingTensors::ForgetReports() {
  unreported_.clear();
  for (auto& [id, tensor] : tensors_) {
    tensor.reported = false;
    unreported_.push_back(id);
  }
}

std::vector<v1::WorkerMessage> PendingTensors::Report(SlotTable& slots, bool join_waits) {
  // A join is behind what was submitted before it, which may have come back from a schedule.
  const bool joins = join_is_unreported();
  const bool waits = joins && join_waits;
  if (joins) std::erase(unreported_, join_);
  if (joins && !waits) unreported_.push_back(join_);
  // Those that have slots first, which no join has; otherwise the order among different names is
  // nobody's.
  std::erase_if(unreported_, [&](TensorId id) {
    Tensor& tensor = tensors_.at(id);
    tensor.reported = true;
    if (slots.Report(*tensor.spec)) return true;
    slots.Mention(tensor.spec->process_set);
    return false;
  });
  Messages messages;
  for (v1::CachedTensors& cached : slots.Take()) {
    const int64_t bytes = static_cast<int64_t>(cached.ByteSizeLong()) + kTensorFramingBytes;
    *messages.For(bytes).mutable_tensors_ready()->add_cached() = std::move(cached);
  }
  for (TensorId id : unreported_) {
    v1::TensorSpec spec;
    ToProto(*tensors_.at(id).spec, &spec);
    const int64_t bytes = static_cast<int64_t>(spec.ByteSizeLong()) + kTensorFramingBytes;
    *messages.For(bytes).mutable_tensors_ready()->add_tensors() = std::move(spec);
  }
  unreported_.clear();
  if (waits) unreported_.push_back(join_);
  return messages.Take();
}

std::vector<v1::WorkerMessage> PendingTensors::Withdraw(const std::vector<TensorId>& tensors,
                                                        const absl::Status& why, absl::Time now) {
  for (TensorId id : tensors) {
    Tensor& tensor = tensors_.at(id);
    tensor.withdrawn = ForTensor(tensor.spec->name, why);
  }
  std::vector<v1::WorkerMessage> messages;
  AppendWithdrawn(tensors, why.message(), now, messages);
  return messages;
}

std::vector<v1::WorkerMessage> PendingTensors::WithdrawAnew(absl::Time now) {
  std::map<ProcessSetId, std::vector<TensorId>> withdrawn;
  for (const auto& [id, tensor] : tensors_)
    if (!tensor.withdrawn.ok()) withdrawn[tensor.spec->process_set].push_back(id);
  std::vector<v1::WorkerMessage> messages;
  for (const auto& [set, ids] : withdrawn)
    AppendWithdrawn(ids, tensors_.at(ids.front()).withdrawn.message(), now, messages);
  return messages;
}

void PendingTensors::AppendWithdrawn(const std::vector<TensorId>& tensors, absl::string_view why,
                                     absl::Time now, std::vector<v1::WorkerMessage>& messages) {
  v1::WorkerMessage message;
  int64_t bytes = 0;
  auto flush = [&] {
    if (bytes == 0) return;
    message.mutable_tensors_withdrawn()->set_reason(ShortenedText(why, kMaxReasonBytes));
    messages.push_back(std::exchange(message, {}));
    bytes = 0;
  };
  for (TensorId id : tensors) {
    const auto tensor = tensors_.find(id);
    const TensorSpec& spec = *tensor->second.spec;
    SetDeadline(tensor, now + kWithdrawalAnswer);
    // A message is about one set.
    if (message.tensors_withdrawn().process_set() != ToInt(spec.process_set)) flush();
    message.mutable_tensors_withdrawn()->set_process_set(ToInt(spec.process_set));
    message.mutable_tensors_withdrawn()->add_names(spec.name);
    bytes += static_cast<int64_t>(spec.name.size()) + kTensorFramingBytes;
    if (bytes > kMaxReportBytes / 2) flush();
  }
  flush();
}

absl::Status PendingTensors::CheckConsistency() const {
  const auto wrong = [](const auto&... what) {
    return absl::InternalError(absl::StrCat("pending tensors: ", what...));
  };
  size_t unreported = 0;
  for (const auto& [id, tensor] : tensors_) {
    const std::string& name = tensor.spec->name;
    const auto named = by_name_.find(TensorKey(tensor.spec->process_set, name));
    if (named == by_name_.end() || named->second != id) return wrong(name, " has lost its name");
    if (!deadlines_.contains({tensor.deadline, id})) return wrong(name, " has lost its deadline");
    const bool listed = std::count(unreported_.begin(), unreported_.end(), id) == 1;
    if (listed == tensor.reported)
      return wrong(name, " is ", listed ? "reported" : "unreported", ", and listed otherwise");
    unreported += listed ? 1 : 0;
  }
  if (by_name_.size() != size() || deadlines_.size() != size() || unreported != unreported_.size())
    return wrong("an index has an entry of none");
  if (has_joined() && !tensors_.contains(join_)) return wrong("the join is none of them");
  return absl::OkStatus();
}

}  // namespace coordd
