// Process sets in the scenarios of gpu_ranks.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "coordd/coordd.h"
#include "tests/integration/gpu_rank.h"

namespace coordd {

// Two sets that overlap, used in opposite orders by the ranks that are in both: one order on every
// device is coordd's to make.
inline void ProcessSets(RankOnDevice& r, const int32_t (&sets)[2]) {
  const int64_t shape[] = {50};
  coordd_work_t* works[2] = {};
  float* data[2] = {};
  std::vector<int> mine;
  if (r.rank() + 1 < r.size()) mine.push_back(0);
  if (r.rank() > 0) mine.push_back(1);
  if (r.rank() % 2 == 1) std::reverse(mine.begin(), mine.end());
  for (int which : mine) {
    data[which] = r.Upload(Filled(50, static_cast<float>(r.rank())));
    coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
    options.process_set = sets[which];
    coordd_tensor_t tensor = r.Tensor("subset", COORDD_FLOAT32, data[which], data[which], shape);
    RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, &options, &works[which]),
              "submit to a set");
  }
  const int32_t all = r.size() * (r.size() - 1) / 2;
  for (int which : mine) {
    r.Finish(works[which]);
    coordd_work_release(works[which]);
    const int32_t expected = which == 0 ? all - (r.size() - 1) : all;
    Expect(r.Download<float>(data[which], 50), Filled(50, static_cast<float>(expected)), "subset");
  }
}

inline coordd_status_t SumOfOnes(RankOnDevice& r, const char* name, int32_t process_set) {
  const int64_t shape[] = {10};
  float* const data = r.Upload(Filled(10, 1.0f));
  coordd_tensor_t tensor = r.Tensor(name, COORDD_FLOAT32, data, data, shape);
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  options.process_set = process_set;
  const coordd_status_t status =
      coordd_allreduce(r.worker(), &tensor, COORDD_SUM, &options, nullptr);
  const std::string text = status == COORDD_OK
                               ? std::to_string(static_cast<int>(r.Download<float>(data, 1)[0]))
                               : coordd_last_error();
  std::printf("%s ended %s %s\n", name, coordd_status_name(status), text.c_str());
  return status;
}

inline void InASet(RankOnDevice& r) {
  const int32_t members[] = {0, 1};
  int32_t set = 0;
  RequireOk(SumOfOnes(r, "all", 0), "of all");
  RequireOk(coordd_process_set_add(r.worker(), members, 2, 0, &set), "add a set");
  const int32_t own = r.rank() < 2 ? set : 0;  // to the others nobody comes
  if (SumOfOnes(r, "some", own) == COORDD_OK) return;
  r.EnterNext();
  RequireOk(SumOfOnes(r, "all", 0), "of all, again");
  if (own != 0) RequireOk(SumOfOnes(r, "some", own), "of the set, again");
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
}

}  // namespace coordd
