#include "tests/sim/random_programs.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "tests/server/support/builders.h"

namespace coordd {
namespace {

using Kind = SimOp::Kind;

// What all ranks do in a step, as values; each rank does it in its own order where that is free.
struct Step {
  std::vector<std::vector<TensorSpec>> submissions;  // of one tensor, or of a group
  bool waits_each = false;                           // for each before it submits the next
};

// The same random steps for all ranks.
class Programs {
 public:
  Programs(uint64_t seed, int32_t size)
      : has_devices_(seed % 3 == 0), random_(seed), programs_(static_cast<size_t>(size)) {}

  void AddPhase() {
    const Step base = RandomStep();
    const bool metric = random_.Below(3) == 0;
    const uint64_t period = 2 + random_.Below(4);
    const uint64_t steps = 1 + random_.Below(14);
    for (uint64_t i = 0; i < steps; ++i) {
      Step step = base;
      if (metric && i % period == 0) {
        step.submissions.push_back({Gradient("metric", {1})});
        if (has_devices_ && steps % 2 == 0)
          step.submissions.back().front().memory = MemoryKind::kCuda;
      }
      Append(step);
    }
  }

  // Every rank has had enough at another time, some in the middle of a step; then all go on.
  void AddUnevenEnd() {
    const Step step = RandomStep(/*grouped=*/false);
    const uint64_t steps = 5 + random_.Below(5);
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      const uint64_t mine = steps + random_.Below(4);
      for (uint64_t i = 0; i < mine; ++i) AppendTo(rank, step);
      for (uint64_t left = LeftOut(step); left > 0; --left) programs_[rank].pop_back();
      programs_[rank].push_back({.kind = Kind::kJoin});
      programs_[rank].push_back({.kind = Kind::kWait});
    }
  }

  // A set of some ranks, with a rhythm of its own.
  void AddSetPhase(int32_t number) {
    std::vector<int32_t> members;
    for (int32_t rank = 0; rank + 1 < static_cast<int32_t>(programs_.size()); ++rank)
      members.push_back(rank);
    const Step all = RandomStep(), some = RandomStep();
    const uint64_t steps = 4 + random_.Below(6);
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      programs_[rank].push_back({.kind = Kind::kAddSet, .ranks = members});
      for (uint64_t i = 0; i < steps; ++i) {
        AppendTo(rank, all);
        if (rank + 1 < programs_.size()) AppendTo(rank, some, ProcessSetId{number});
      }
      programs_[rank].push_back({.kind = Kind::kWait});
      programs_[rank].push_back({.kind = Kind::kRemoveSet, .set = ProcessSetId{number}});
    }
  }

  std::vector<SimProgram> Take() {
    for (SimProgram& program : programs_) program.push_back({.kind = Kind::kWait});
    return std::move(programs_);
  }

 private:
  Step RandomStep(bool grouped = true) {
    Step step;
    step.waits_each = random_.Below(4) == 0;
    const uint64_t count = 1 + random_.Below(6);
    for (uint64_t i = 0; i < count; ++i) {
      const bool group = grouped && random_.Below(4) == 0;
      std::vector<TensorSpec> tensors;
      const bool on_device = has_devices_ && random_.Below(3) > 0;
      const bool large = on_device && random_.Below(3) == 0;
      for (int j = 0; j < (group ? 3 : 1); ++j) {
        TensorSpec spec =
            Gradient(absl::StrCat("t", i, ".", j),
                     {static_cast<int64_t>(1 + random_.Below(2)), large ? 20000 : 200});
        if (on_device) spec.memory = MemoryKind::kCuda;
        if (random_.Below(3) == 0) spec.dtype = DataType::kFloat64;
        if (!group && random_.Below(5) == 0) {
          spec.kind = CollectiveKind::kAllgather;
          spec.op = ReduceOp::kNone;
        }
        if (group) spec = InGroup(spec, absl::StrCat("g", i), 3);
        tensors.push_back(std::move(spec));
      }
      step.submissions.push_back(std::move(tensors));
    }
    return step;
  }
  // How many of its last operations a rank leaves out of a step that it does not end.
  uint64_t LeftOut(const Step& step) {
    if (random_.Below(2) == 0) return 0;
    return 1 + random_.Below(step.submissions.size() * (step.waits_each ? 2 : 1));
  }
  void Append(const Step& step) {
    for (size_t rank = 0; rank < programs_.size(); ++rank) AppendTo(rank, step);
  }
  void AppendTo(size_t rank, const Step& step, ProcessSetId set = {}) {
    std::vector<std::vector<TensorSpec>> submissions = step.submissions;
    const bool reorders = !step.waits_each && random_.Below(3) == 0;
    if (reorders) std::swap(submissions.front(), submissions.back());
    for (std::vector<TensorSpec>& tensors : submissions) {
      for (TensorSpec& spec : tensors) {
        spec.process_set = set;
        // Rows differ by rank.
        if (spec.kind == CollectiveKind::kAllgather)
          spec.shape[0] = static_cast<int64_t>(random_.Below(4));
      }
      programs_[rank].push_back({.kind = Kind::kSubmit, .tensors = std::move(tensors)});
      if (step.waits_each) programs_[rank].push_back({.kind = Kind::kWait});
    }
    programs_[rank].push_back({.kind = Kind::kWait});
  }

  const bool has_devices_;
  Random random_;
  std::vector<SimProgram> programs_;
};

}  // namespace

std::vector<SimProgram> RandomPrograms(uint64_t seed) {
  Random random(seed);
  Programs programs(seed + 1, static_cast<int32_t>(2 + random.Below(3)));
  const uint64_t phases = 2 + random.Below(5);
  int32_t sets = 0;
  for (uint64_t i = 0; i < phases; ++i) {
    switch (random.Below(6)) {
      case 0:
        programs.AddUnevenEnd();
        break;
      case 1:
        programs.AddSetPhase(++sets);
        break;
      default:
        programs.AddPhase();
    }
  }
  return programs.Take();
}

}  // namespace coordd
