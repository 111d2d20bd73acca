// A WorkerState and the coordd that speaks to it, for tests.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/proto_convert.h"
#include "tests/support/start_time.h"
#include "worker/protocol/worker_state.h"

namespace coordd {

inline constexpr absl::Duration kTimeout = absl::Seconds(60);

inline TensorSpec Gradient(const std::string& name, std::vector<int64_t> shape = {4}) {
  TensorSpec spec;
  spec.name = name;
  spec.op = ReduceOp::kSum;
  spec.shape = std::move(shape);
  return spec;
}

// Drives a WorkerState as the control thread does, one turn per call, and sorts what comes out.
class Member {
 public:
  explicit Member(absl::Time start = kStart) : Member(start, Options()) {}
  Member(absl::Time start, const WorkerStateOptions& options)
      : now_(start), state_(options, start) {
    Tick();
    Clear();  // the first heartbeat
  }

  // Of a coordd whose state outlives it.
  static WorkerStateOptions LastingOptions(OnFailure on_failure = OnFailure::kEnd) {
    WorkerStateOptions options = Options(on_failure);
    options.cluster_id = "c0ffee";
    options.join.set_worker_id("w0");
    return options;
  }
  static WorkerStateOptions Options(OnFailure on_failure = OnFailure::kEnd) {
    WorkerStateOptions options;
    options.on_failure = on_failure;
    options.epoch = Epoch{7};
    options.generation = Generation{1};
    options.rank = Rank{0};
    options.size = 3;
    options.received_sequence = 1;
    return options;
  }

  const std::vector<WorkerEffect>& effects() const { return effects_; }
  void Advance(absl::Duration by) {
    now_ += by;
    Tick();
  }
  void Submit(const std::vector<TensorSpec>& specs, absl::Duration timeout = kTimeout,
              Generation generation = {}) {
    TensorsSubmitted submitted;
    submitted.generation = generation;
    for (const TensorSpec& spec : specs)
      submitted.tensors.push_back({TensorId{++last_id_}, spec, now_ + timeout});
    Turn(std::move(submitted));
  }
  void Plan(std::vector<std::string> tensors, bool staged = false) {
    v1::CoordinatorMessage message = Message();
    v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
    batch.set_sequence(++batch_sequence_);
    for (std::string& name : tensors) batch.add_tensors(std::move(name));
    batch.set_staged(staged);
    Say(std::move(message));
  }
  // The plan of a process set: its batches are numbered apart. `specs`: while this rank has joined.
  void PlanIn(int32_t set, int64_t sequence, const std::vector<std::string>& tensors,
              const std::vector<TensorSpec>& specs = {}) {
    v1::CoordinatorMessage message = Message();
    v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
    batch.set_sequence(sequence);
    batch.set_lane(set);
    batch.set_process_set(set);
    for (const std::string& name : tensors) batch.add_tensors(name);
    for (const TensorSpec& spec : specs) ToProto(spec, batch.add_specs());
    Say(std::move(message));
  }
  // `request` 0: a pair; no ranks: the set has ended.
  void Change(int64_t request, int32_t set, const std::vector<int32_t>& ranks,
              int64_t position = 0) {
    v1::CoordinatorMessage message = Message();
    message.set_position(position);
    v1::ProcessSetChange& change = *message.mutable_process_set_change();
    change.set_request(request);
    change.set_process_set(set);
    change.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    Say(std::move(message));
  }
  // What coordd says of a set that its members make alone; no ranks: it has ended.
  void ChangeNamed(const std::string& name, int32_t set, const std::vector<int32_t>& ranks,
                   int64_t position = 0) {
    v1::CoordinatorMessage message = Message();
    message.set_position(position);
    v1::ProcessSetChange& change = *message.mutable_process_set_change();
    change.set_name(name);
    change.set_process_set(set);
    change.mutable_ranks()->Assign(ranks.begin(), ranks.end());
    Say(std::move(message));
  }
  void RefuseSet(int64_t request, absl::StatusCode code, const std::string& text,
                 const std::string& name = "") {
    v1::CoordinatorMessage message = Message();
    v1::ProcessSetChange& change = *message.mutable_process_set_change();
    change.set_request(request);
    change.set_name(name);
    change.set_code(static_cast<int>(code));
    change.set_message(text);
    Say(std::move(message));
  }
  void Fail(const std::string& name, absl::StatusCode code, const std::string& text) {
    v1::CoordinatorMessage message = Message();
    v1::TensorFailure& failure = *message.mutable_tensor_failures()->add_failures();
    failure.set_name(name);
    failure.set_code(static_cast<int>(code));
    failure.set_message(text);
    Say(std::move(message));
  }
  void Abort(v1::DepartureCause cause, const std::string& detail, bool in_flight,
             bool reforms = false, bool report_sets = false) {
    v1::CoordinatorMessage message = Message();
    message.mutable_abort()->set_report_process_sets(report_sets);
    message.mutable_abort()->set_in_flight(in_flight);
    message.mutable_abort()->set_reforms(reforms);
    v1::Departure& departure = *message.mutable_abort()->add_departures();
    departure.set_rank(2);
    departure.set_hostname("node3");
    departure.set_pid(4711);
    departure.set_cause(cause);
    departure.set_detail(detail);
    Say(std::move(message));
  }
  void Done(int64_t sequence, absl::Status status = absl::OkStatus(),
            std::optional<Rank> lost = std::nullopt) {
    BatchDone done{LaneId{0}, sequence, std::move(status), std::nullopt};
    if (lost.has_value()) done.suspect = Suspect{*lost};
    Turn(std::move(done));
  }
  void Turn(WorkerEvent event) {
    state_.Step(std::move(event), now_, effects_);
    Tick();
  }
  void Say(v1::CoordinatorMessage message) { Turn(CoordinatorSaid{std::move(message)}); }
  v1::CoordinatorMessage Message() {
    v1::CoordinatorMessage message;
    message.set_epoch(7);
    message.set_generation(generation_);
    message.set_sequence(++sequence_);
    return message;
  }
  // This rank is the given one of so many in the next generation.
  // `cluster_id`: of the coordd that may be started again; empty: it remembers nothing.
  void NextGeneration(int32_t rank, int32_t size, bool sets_follow = false,
                      const std::string& cluster_id = "") {
    ++generation_;
    batch_sequence_ = 0;
    v1::CoordinatorMessage message = Message();
    message.mutable_membership()->set_rank(rank);
    message.mutable_membership()->set_size(size);
    message.mutable_membership()->add_nodes()->set_nodes(1);
    message.mutable_membership()->mutable_nodes(0)->set_ranks_per_node(size);
    message.mutable_membership()->set_process_sets_follow(sets_follow);
    if (!cluster_id.empty()) message.mutable_membership()->set_session(77);
    message.mutable_membership()->set_cluster_id(cluster_id);
    Say(std::move(message));
  }
  void SayProcessSet(int32_t number, const std::vector<int32_t>& ranks, int32_t last,
                     bool more = false) {
    v1::CoordinatorMessage message = Message();
    v1::ProcessSets& sets = *message.mutable_process_sets();
    sets.set_last_process_set(last);
    sets.set_more(more);
    sets.add_sets()->set_process_set(number);
    sets.mutable_sets(0)->mutable_ranks()->Assign(ranks.begin(), ranks.end());
    Say(std::move(message));
  }
  void SkipMessage() { ++sequence_; }

  // What came out since the last Clear().
  std::vector<v1::WorkerMessage> sent(v1::WorkerMessage::BodyCase kind) const {
    std::vector<v1::WorkerMessage> found;
    for (const WorkerEffect& effect : effects_) {
      const auto* send = std::get_if<SendMessage>(&effect);
      if (send != nullptr && send->message.body_case() == kind) found.push_back(send->message);
    }
    return found;
  }
  std::vector<std::string> reported() const {
    std::vector<std::string> names;
    for (const auto& message : sent(v1::WorkerMessage::kTensorsReady))
      for (const auto& tensor : message.tensors_ready().tensors()) names.push_back(tensor.name());
    return names;
  }
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const WorkerEffect& effect : effects_)
      if (const T* one = std::get_if<T>(&effect)) found.push_back(*one);
    return found;
  }
  // How the tensor with this number failed; OK: it has not.
  absl::Status failure(int64_t id) const {
    for (const FailTensor& fail : All<FailTensor>())
      if (fail.id == TensorId{id}) return fail.status;
    return absl::OkStatus();
  }
  void Clear() { effects_.clear(); }
  WorkerState& state() { return state_; }
  absl::Time now() const { return now_; }

 private:
  void Tick() { state_.Tick(now_, effects_); }

  absl::Time now_;
  WorkerState state_;
  std::vector<WorkerEffect> effects_;
  int64_t last_id_ = 0;
  int64_t sequence_ = 1;
  int64_t generation_ = 1;
  int64_t batch_sequence_ = 0;
};

}  // namespace coordd
