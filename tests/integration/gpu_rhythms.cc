#include "tests/integration/gpu_rhythms.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "tests/integration/gpu_memory.h"

namespace coordd {
namespace {

struct Reduction {
  coordd_work_t* work = nullptr;
  float* data = nullptr;
  int64_t count = 0;
  int32_t ranks = 0;
};

// Of the rank's number, counted from 1: the sum tells who has taken part.
Reduction Submit(RankOnDevice& r, const char* name, int64_t count, int32_t set = 0,
                 int32_t ranks = 0) {
  Reduction reduction;
  reduction.count = count;
  reduction.ranks = ranks == 0 ? r.size() : ranks;
  reduction.data = r.Upload(Filled(static_cast<size_t>(count), static_cast<float>(r.rank() + 1)));
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  options.process_set = set;
  coordd_tensor_t tensor =
      r.Tensor(name, COORDD_FLOAT32, reduction.data, reduction.data, &reduction.count);
  RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, &options, &reduction.work),
            std::string("submit ") + name);
  return reduction;
}

void Check(RankOnDevice& r, const Reduction& reduction, const char* what) {
  r.Finish(reduction.work);
  coordd_work_release(reduction.work);
  const auto sum = static_cast<float>(reduction.ranks * (reduction.ranks + 1) / 2);
  const auto count = static_cast<size_t>(reduction.count);
  Expect(r.Download<float>(reduction.data, count), Filled(count, sum), what);
}

}  // namespace

void Rhythms(RankOnDevice& r, int steps) {
  constexpr int64_t kGradients[] = {1000, 20000, 300};
  const char* const names[] = {"g0", "g1", "g2"};
  std::vector<int32_t> some(static_cast<size_t>(std::max(r.size() - 1, 1)));
  std::iota(some.begin(), some.end(), 0);
  int32_t set = 0;
  RequireOk(coordd_process_set_add(r.worker(), some.data(), some.size(), 0, &set), "add a set");
  const bool member = r.rank() < static_cast<int32_t>(some.size());
  for (int step = 0; step < steps; ++step) {
    if ((3 * r.rank() + step) % 5 == 0) r.Synchronize();
    if (step == 30 || step == 31) RegisteredMemory(r);
    std::vector<Reduction> gradients;
    for (size_t i = 0; i < std::size(names); ++i)
      gradients.push_back(Submit(r, names[i], kGradients[i]));
    if (step % 5 == 4) Check(r, Submit(r, "loss", 1), "a small one beside the gradients");
    if (step % 64 == 40) Check(r, Submit(r, "large", 40000), "a large one beside the gradients");
    if (member && step % 64 >= 60) {
      const auto ranks = static_cast<int32_t>(some.size());
      Check(r, Submit(r, "of the set", 20000, set, ranks), "a tensor of the process set");
    }
    for (const Reduction& gradient : gradients) Check(r, gradient, "a gradient");
    r.ForgetMemory();
  }
  std::printf("ok %d steps\n", steps);
}

}  // namespace coordd
