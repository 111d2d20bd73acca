#include "server/generation/schedule_detector.h"

#include <algorithm>

#include "common/base/check.h"

namespace coordd {

void ScheduleDetector::Planned(const std::vector<const TensorSpec*>& batch) {
  step_.emplace_back();
  for (const TensorSpec* spec : batch) OnTensor(*spec);
}

void ScheduleDetector::OnTensor(const TensorSpec& spec) {
  auto found = known_.find(spec.name);
  if (found != known_.end() && IsFrequent(found->second)) {
    if (++frequent_in_a_row_ <= kMaxFrequentInARow) return;
    Reset();
    found = known_.end();
  }
  frequent_in_a_row_ = 0;
  if (found != known_.end() && found->second.in_step) {
    CloseStep();
    found = known_.find(spec.name);
  }
  Known* const learned =
      found == known_.end() || !SameCall(found->second.spec, spec) ? Learn(spec) : &found->second;
  if (learned == nullptr) return;
  Known& known = *learned;
  known.in_step = true;
  ++known.streak;
  if (known.expected) ++arrived_;
  step_.back().push_back(spec.name);
  // What is frequent stays known, and names that count can be frequent, too.
  if (++step_tensors_ > kMaxTensors || known_.size() > 2 * kMaxTensors) Reset();
}

ScheduleDetector::Known* ScheduleDetector::Learn(const TensorSpec& spec) {
  if (const auto other = known_.find(spec.name); other != known_.end()) {
    if (other->second.expected) --expected_;
    kept_.Set(kept_.bytes() - KeptNames::CostOf(other->second.spec));
    known_.erase(other);
  }
  if (!kept_.Add(KeptNames::CostOf(spec))) {
    Reset();
    return nullptr;
  }
  return &known_.emplace(spec.name, Known{spec}).first->second;
}

bool ScheduleDetector::IsFrequent(Known& known) {
  if (known.frequent) return true;
  if (!known.in_step || 2 * step_tensors_ >= last_step_tensors_) return false;
  known.frequent = true;
  known.in_step = false;
  --step_tensors_;
  if (known.expected) {
    known.expected = false;
    --expected_;
    --arrived_;
  }
  return true;
}

void ScheduleDetector::CloseStep() {
  absl::erase_if(known_, [this](const auto& entry) {
    if (entry.second.in_step || entry.second.frequent) return false;
    kept_.Set(kept_.bytes() - KeptNames::CostOf(entry.second.spec));
    return true;
  });
  missed_ = complete();
  last_step_tensors_ = step_tensors_;
  expected_ = arrived_ = 0;
  for (auto& [name, known] : known_) {
    known.in_step = false;
    known.expected = !known.frequent && known.streak + 1 >= steps_;
    if (known.expected) ++expected_;
  }
  step_.assign(1, {});
  step_tensors_ = 0;
}

// What has come of the step counts for the next one.
void ScheduleDetector::Recut() {
  for (auto& [name, known] : known_) known.in_step = false;
  step_.assign(1, {});
  step_tensors_ = arrived_ = 0;
  missed_ = false;
}

ScheduleBatches ScheduleDetector::Pattern() const {
  COORDD_CHECK(complete());
  absl::flat_hash_map<std::string, int32_t> of_group;
  for (const auto& [name, known] : known_) {
    if (known.expected && !known.spec.group.empty()) ++of_group[known.spec.group];
  }
  ScheduleBatches pattern;
  for (const std::vector<std::string>& batch : step_) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : batch) {
      const Known& known = known_.at(name);
      // A group is planned as a whole or not at all.
      const std::string& group = known.spec.group;
      if (!known.expected || (!group.empty() && of_group.at(group) < known.spec.group_size))
        continue;
      specs.push_back(known.spec);
    }
    if (!specs.empty()) pattern.push_back(std::move(specs));
  }
  return pattern;
}

void ScheduleDetector::Reset() {
  known_.clear();
  kept_.Set(0);
  step_.assign(1, {});
  step_tensors_ = last_step_tensors_ = frequent_in_a_row_ = expected_ = arrived_ = 0;
  missed_ = false;
}

void ScheduleDetector::Ended(bool was_of_use) {
  Reset();
  steps_ = was_of_use ? first_steps_ : std::min(2 * steps_, kMaxSteps);
}

}  // namespace coordd
