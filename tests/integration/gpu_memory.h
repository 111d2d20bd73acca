// Memory of the program that NCCL is told of.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "tests/integration/gpu_rank.h"

namespace coordd {

// A buffer that is registered on all ranks, reduced, and no longer registered; where not all ranks
// can, that is said to all of them.
inline void RegisteredMemory(RankOnDevice& r) {
  constexpr int64_t kCount = 50'000;
  const float sum = static_cast<float>(r.size() * (r.size() + 1) / 2);
  constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(float));
  float* data = r.Upload(std::vector<float>(kCount, static_cast<float>(r.rank() + 1)));
  void* of_nccl = nullptr;  // where NCCL has memory: from 2.19 on
  if (coordd_alloc_device(r.device(), kBytes, &of_nccl) == COORDD_OK) {
    Require(CopyAsync(r.runtime(), r.device(), of_nccl, data, kBytes,
                      static_cast<CudaStream>(r.stream()))
                .ok(),
            "copy");
    data = static_cast<float*>(of_nccl);
  } else {
    std::printf("not allocated: %s\n", coordd_last_error());
  }
  const coordd_status_t status = coordd_register_device(r.worker(), 0, r.device(), data, kBytes, 0);
  if (status != COORDD_OK) std::printf("not registered: %s\n", coordd_last_error());
  Require(status == COORDD_OK || status == COORDD_UNIMPLEMENTED, "register: not all ranks can");
  coordd_tensor_t tensor = r.Tensor("registered", COORDD_FLOAT32, data, data, &kCount);
  coordd_work_t* work = nullptr;
  RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), "submit");
  r.Finish(work);
  coordd_work_release(work);
  Require(r.Download<float>(data, kCount) == std::vector<float>(kCount, sum),
          "allreduce of registered memory");
  if (status != COORDD_OK) return RequireOk(coordd_free_device(of_nccl), "free");
  RequireOk(coordd_unregister_device(r.worker(), 0, data, 0), "unregister");
  Require(coordd_unregister_device(r.worker(), 0, data, 0) == COORDD_INVALID_ARGUMENT,
          "unregister what is not registered");
  RequireOk(coordd_free_device(of_nccl), "free");
}

}  // namespace coordd
