// Whether a program does the same again and again: the pattern that becomes a schedule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/protocol/tensor_spec.h"
#include "server/generation/kept_names.h"

namespace coordd {

// The tensors of each batch, in the order in which all ranks execute them.
using ScheduleBatches = std::vector<std::vector<TensorSpec>>;

// Whether it is of tensors on devices: all of a schedule are, or none.
inline bool OnDevices(const ScheduleBatches& batches) {
  return !batches.empty() && !batches.front().empty() &&
         batches.front().front().memory != MemoryKind::kHost;
}

// PURE. One for each process set. It sees what is planned, and cuts it into steps: a step ends
// before the first tensor that it contains already. What has been in every one of the last steps,
// with the same spec, is the pattern; a metric that is reduced now and then is not part of it, nor
// is what changes its shape, nor what comes several times in a step (two calls without a name, for
// example): a tensor that comes again when less than half as many as in the last step have come.
//
// Where it begins to look, in the middle of what the program does in a step, say, the steps that it
// cuts end there, too, and others submit what comes next before all of such a step is planned. Then
// the pattern is complete at no moment at which nothing is pending (`missed`), and whoever knows of
// such a moment has the steps cut there.
//
// The batches are those of the last step as it was planned. What was planned together had been
// submitted by every rank before any of it was executed; so no program waits for one of a batch
// before it submits another.
class ScheduleDetector {
 public:
  // A step with more tensors is none: what never repeats has names that count.
  static constexpr size_t kMaxTensors = 16384;
  // When so many frequent ones come with nothing between them, the program does something else now.
  static constexpr size_t kMaxFrequentInARow = 16;
  static constexpr int64_t kMaxSteps = 4096;  // that a pattern must last, however often it broke

  // `kept`: counts what it knows; where there is no room it begins from the beginning.
  explicit ScheduleDetector(int64_t steps, KeptNames::Hold kept = {})
      : first_steps_(steps), steps_(steps), kept_(std::move(kept)) {}

  void Planned(const std::vector<const TensorSpec*>& batch);

  // All of the pattern has been planned in this step, and nothing of the next one.
  bool complete() const { return expected_ > 0 && arrived_ == expected_; }
  // It was in the last step, and no schedule has begun.
  bool missed() const { return missed_; }
  // The step ends here, where nothing is pending.
  void Recut();
  // The pattern; empty if nothing of it can be scheduled. REQUIRES: complete.
  ScheduleBatches Pattern() const;

  // Begins from the beginning.
  void Reset();
  // A schedule of this set has ended. One that was of use may be followed by another soon; after
  // one that was not, the pattern has to last for twice as many steps.
  void Ended(bool was_of_use);
  int64_t steps() const { return steps_; }
  size_t known_tensors() const { return known_.size(); }  // at most 2 * kMaxTensors

 private:
  struct Known {
    TensorSpec spec;
    int64_t streak = 0;  // of consecutive steps with it, this one included
    bool in_step = false;
    bool expected = false;  // in every step so far that counts, so in this one too
    bool frequent = false;  // several times in a step: not of the pattern, and no end of a step
  };
  void OnTensor(const TensorSpec& spec);
  // Known from now on, as never seen before. nullptr: there is no room, and nothing is known.
  Known* Learn(const TensorSpec& spec);
  bool IsFrequent(Known& known);
  void CloseStep();

  const int64_t first_steps_;
  int64_t steps_;
  KeptNames::Hold kept_;
  absl::flat_hash_map<std::string, Known> known_;
  std::vector<std::vector<std::string>> step_;  // batches of this step
  size_t step_tensors_ = 0;
  size_t last_step_tensors_ = 0;
  size_t frequent_in_a_row_ = 0;
  size_t expected_ = 0;
  size_t arrived_ = 0;
  bool missed_ = false;
};

}  // namespace coordd
