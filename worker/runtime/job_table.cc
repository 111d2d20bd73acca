#include "worker/runtime/job_table.h"

#include <algorithm>

#include "common/base/check.h"

namespace coordd {

TensorsSubmitted JobTable::Add(std::vector<TensorJob> jobs) {
  TensorsSubmitted values;
  values.tensors.reserve(jobs.size());
  if (!jobs.empty()) values.generation = jobs.front().generation;
  open_.reserve(open_.size() + jobs.size());
  const auto shared = std::make_shared<std::vector<TensorJob>>(std::move(jobs));
  for (size_t i = 0; i < shared->size(); ++i) {
    const TensorJob& job = (*shared)[i];
    const TensorId id{++last_id_};
    values.tensors.push_back({id, job.shared_spec(), job.deadline});
    open_.emplace(id, OpenTensor{job.work, shared, i});
  }
  return values;
}

ProcessSetAsked JobTable::Add(ProcessSetCall call) {
  call.asked.token = ++last_token_;
  replies_.emplace(last_token_, std::move(call.reply));
  return std::move(call.asked);
}

void JobTable::Ended(const BatchDone& done) {
  const auto batch = batches_.find({done.lane, done.sequence});
  COORDD_CHECK(batch != batches_.end());
  if (done.status.ok()) {
    for (TensorId id : batch->second) open_.erase(id);
  }
  batches_.erase(batch);
}

std::optional<TensorId> JobTable::Awaited(const std::vector<TensorId>& ids) const {
  for (TensorId id : ids) {
    const auto tensor = open_.find(id);
    if (tensor == open_.end() || tensor->second.jobs == nullptr) continue;
    if (tensor->second.work->has_waiter()) return id;
  }
  return std::nullopt;
}

ControlAction JobTable::Resolve(WorkerEffect effect) {
  return std::visit([this](auto& e) { return ControlAction(this->On(e)); }, effect);
}

std::vector<DefineGroup> JobTable::Begin(std::vector<DefineProcessSet> process_sets) {
  std::vector<DefineGroup> groups;
  groups.reserve(process_sets.size());
  for (DefineProcessSet& set : process_sets) groups.push_back(On(set));
  return groups;
}

DefineGroup JobTable::On(DefineProcessSet& effect) {
  auto ranks = std::make_shared<const std::vector<int32_t>>(std::move(effect.ranks));
  if (effect.member) {
    BatchContext context = world_;
    context.process_set = effect.process_set;
    context.size = static_cast<int32_t>(ranks->size());
    context.ranks = ranks;
    context.rank = context.IndexOf(ToInt(rank_));
    process_sets_.emplace(effect.process_set, std::move(context));
  }
  return {effect.process_set, std::move(ranks), effect.member, effect.for_pair};
}

ControlAction JobTable::On(EndProcessSet& effect) {
  process_sets_.erase(effect.process_set);
  return effect;
}

ControlAction JobTable::On(ProcessSetAnswer& effect) {
  auto reply = replies_.extract(effect.token);
  COORDD_CHECK(!reply.empty());
  if (effect.status.ok()) return AnswerCall{std::move(reply.mapped()), effect.process_set};
  return AnswerCall{std::move(reply.mapped()), std::move(effect.status)};
}

TensorJob JobTable::Launch(TensorId id) {
  OpenTensor& tensor = open_.at(id);
  COORDD_CHECK(tensor.jobs != nullptr);
  const auto jobs = std::exchange(tensor.jobs, nullptr);
  return std::move((*jobs)[tensor.index]);
}

ControlAction JobTable::On(LaunchBatch& effect) {
  std::vector<TensorJob> jobs;
  jobs.reserve(effect.tensors.size());
  auto absent = effect.absent.begin();
  for (TensorId id : effect.tensors) {
    if (ToInt(id) == 0) {
      jobs.emplace_back();
      jobs.back().absent = true;
      jobs.back().work = std::make_shared<Work>(std::move(*absent++), clock_);
      continue;
    }
    jobs.push_back(Launch(id));
  }
  batches_.emplace(std::pair(effect.lane, effect.sequence), std::move(effect.tensors));
  const bool all = ToInt(effect.process_set) == 0;
  auto batch = std::make_unique<BatchJob>(all ? world_ : process_sets_.at(effect.process_set),
                                          effect.lane, effect.sequence, std::move(jobs));
  batch->last_joined_rank = effect.last_joined_rank;
  batch->begins_cycle = effect.begins_cycle;
  batch->staged = effect.staged;
  absl::Duration longest;
  for (absl::Duration one : effect.negotiation) longest = std::max(longest, one);
  batch->times.ready = effect.ready_at;
  batch->times.submitted = effect.ready_at - longest;
  return LaunchJob{std::move(batch), std::move(effect.negotiation)};
}

ControlAction JobTable::On(FailTensor& effect) {
  auto tensor = open_.extract(effect.id);
  COORDD_CHECK(!tensor.empty());
  return FailWork{std::move(tensor.mapped().work), std::move(effect.status)};
}

void JobTable::Interrupted(std::unique_ptr<BatchJob> batch) {
  auto launched = batches_.extract(BatchKey(batch->lane(), batch->sequence()));
  COORDD_CHECK(!launched.empty());
  interrupted_.emplace(launched.key(),
                       InterruptedBatch{std::move(batch), std::move(launched.mapped())});
}

// REQUIRES: none of them has ended.
void JobTable::SubmitAgain(InterruptedBatch interrupted) {
  const auto jobs = std::make_shared<std::vector<TensorJob>>(interrupted.batch->TakeTensors());
  for (size_t i = 0; i < jobs->size(); ++i) {
    const TensorId id = interrupted.tensors[i];
    const auto tensor = open_.find(id);
    if (tensor == open_.end()) continue;  // absent: this rank has no data
    const TensorJob& job = (*jobs)[i];
    again_.tensors.push_back({id, job.shared_spec(), job.deadline});
    tensor->second = OpenTensor{job.work, jobs, i};
  }
}

ControlAction JobTable::On(EnterGeneration& effect) {
  const v1::Membership& place = effect.membership.membership();
  const bool keeps_inputs = world_.keeps_inputs;
  rank_ = Rank{place.rank()};
  world_ = {Generation{effect.membership.generation()},
            place.rank(),
            place.size(),
            {},
            nullptr,
            keeps_inputs};
  process_sets_.clear();
  std::map<LaneId, int64_t> completed;
  for (const v1::LaneRepair& repair : place.repairs())
    completed[LaneId{repair.lane()}] = repair.completed();
  EnterNext next{std::move(effect.membership), {}, Begin(std::move(effect.process_sets))};
  for (auto& [key, interrupted] : interrupted_) {
    const auto reached = completed.find(key.first);
    const bool counts = reached != completed.end() && key.second <= reached->second;
    if (!counts) {
      SubmitAgain(std::move(interrupted));
      continue;
    }
    // coordd has asked every survivor: whoever is behind holds the result.
    COORDD_CHECK(interrupted.batch->has_result);
    for (TensorId id : interrupted.tensors) open_.erase(id);
    next.held.push_back(std::move(interrupted.batch));
  }
  interrupted_.clear();
  again_.again = true;
  return next;
}

std::vector<ControlAction> JobTable::FailAll(const absl::Status& status) {
  std::vector<ControlAction> actions;
  for (auto& [id, tensor] : open_) actions.push_back(FailWork{std::move(tensor.work), status});
  for (auto& [token, reply] : replies_) actions.push_back(AnswerCall{std::move(reply), status});
  open_.clear();
  interrupted_.clear();
  replies_.clear();
  return actions;
}

}  // namespace coordd
