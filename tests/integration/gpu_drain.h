// Ranks that commit after each step, of which one is asked to leave.
#pragma once

#include <cstdio>

#include "coordd/coordd.h"
#include "tests/integration/gpu_rank.h"

namespace coordd {

inline void CheckedSum(RankOnDevice& r) {
  const int64_t shape[] = {1000};
  float* const data = r.Upload(Filled(1000, static_cast<float>(r.rank() + 1)));
  coordd_work_t* work = nullptr;
  coordd_tensor_t tensor = r.Tensor("sum", COORDD_FLOAT32, data, data, shape);
  RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), "submit");
  r.Finish(work);
  coordd_work_release(work);
  Expect(r.Download<float>(data, 1000),
         Filled(1000, static_cast<float>(r.size() * (r.size() + 1) / 2)), "allreduce");
}

inline void Drain(RankOnDevice& r) {
  const int64_t shape[] = {1};
  for (float leaving = 0; leaving == 0;) {
    CheckedSum(r);
    float* const flag =
        r.Upload(Filled(1, coordd_worker_drain_seconds(r.worker()) >= 0 ? 1.0f : 0.0f));
    coordd_tensor_t tensor = r.Tensor("leaves", COORDD_FLOAT32, flag, flag, shape);
    coordd_work_t* work = nullptr;
    RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_MAX, nullptr, &work), "submit");
    r.Finish(work);
    coordd_work_release(work);
    leaving = r.Download<float>(flag, 1)[0];
    r.ForgetMemory();
  }
  if (coordd_worker_drain_seconds(r.worker()) >= 0) return;
  r.ChangeMembers();
  for (int step = 0; step < 20; ++step) CheckedSum(r);
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
  std::printf("ok with %d ranks\n", r.size());
}

}  // namespace coordd
