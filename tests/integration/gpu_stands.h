// Ranks of which one has a device that stands, or has not come.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "coordd/coordd.h"
#include "tests/integration/gpu_rank.h"
#include "worker/gpu/cuda/device_kernels.h"

namespace coordd {

// An allreduce of three tensors. On rank `standing` a kernel of the program's, behind which they
// are ready, does not end before the file is there.
inline void StandBehindOwnWork(RankOnDevice& r, int standing, const std::string& file) {
  const std::vector<float> ones = Filled(1000, 1.0f);
  std::vector<float*> data;
  for (int i = 0; i < 3; ++i) data.push_back(r.Upload(ones));
  // A communicator is there.
  const int64_t shape[] = {1000};
  float* const warm = r.Upload(ones);
  coordd_tensor_t first = r.Tensor("first", COORDD_FLOAT32, warm, warm, shape);
  coordd_work_t* work = nullptr;
  RequireOk(coordd_allreduce_async(r.worker(), &first, COORDD_SUM, nullptr, &work), "submit");
  r.Finish(work);
  coordd_work_release(work);

  const DeviceMemory pinned =
      DeviceMemory::AllocatePinned(r.runtime(), r.device(), sizeof(uint32_t)).value();
  auto* const word = new (pinned.data()) std::atomic<uint32_t>(r.rank() == standing ? 1 : 0);
  DeviceKernels kernels = DeviceKernels::Load(r.runtime(), r.device()).value();
  Require(kernels.Gate(word, static_cast<CudaStream>(r.stream())).ok(), "the program's kernel");
  std::vector<coordd_work_t*> works(3);
  std::vector<coordd_tensor_t> tensors;
  const std::vector<std::string> names = {"grad/0", "grad/1", "grad/2"};
  for (size_t i = 0; i < 3; ++i)
    tensors.push_back(r.Tensor(names[i].c_str(), COORDD_FLOAT32, data[i], data[i], shape));
  RequireOk(coordd_grouped_allreduce_async(r.worker(), "grads", tensors.data(), 3, COORDD_SUM,
                                           nullptr, works.data()),
            "submit");
  IdleWait idle(1, 1);
  while (access(file.c_str(), F_OK) != 0) idle.Wait();
  *word = 0;
  for (size_t i = 0; i < 3; ++i) {
    RequireOk(coordd_work_wait(works[i], -1), coordd_work_name(works[i]));
    coordd_work_release(works[i]);
    Expect(r.Download<float>(data[i], 1000), Filled(1000, static_cast<float>(r.size())), "sum");
  }
  // What it needs of the worker is not ended before the others are through.
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
  std::printf("ok\n");
}

inline void WaitFor(RankOnDevice& r, const char* name) {
  const int64_t shape[] = {10};
  float* const data = r.Upload(Filled(10, 1.0f));
  coordd_tensor_t tensor = r.Tensor(name, COORDD_FLOAT32, data, data, shape);
  const coordd_status_t status =
      coordd_allreduce(r.worker(), &tensor, COORDD_SUM, nullptr, nullptr);
  std::printf("ended %s %s\n", coordd_status_name(status),
              status == COORDD_OK ? std::to_string(r.Download<float>(data, 10)[9]).c_str()
                                  : coordd_last_error());
}

}  // namespace coordd
