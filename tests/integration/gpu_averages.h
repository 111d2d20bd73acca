// Averages of tensors that nothing packs, which cost no kernel where NCCL can multiply.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/integration/gpu_rank.h"

namespace coordd {

// Alone, so that nothing packs it: with NCCL's own average, or another operator of NCCL's, where
// the factors are powers of two.
inline void Averages(RankOnDevice& r) {
  const int64_t shape[] = {30001};
  for (const double prescale : {1.0, 0.5, 0.75}) {
    const float own = static_cast<float>((r.rank() + 1) * r.size());
    float* const data = r.Upload(std::vector<float>(30001, own));
    coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
    options.prescale_factor = prescale;
    coordd_work_t* work = nullptr;
    const std::string name = "average " + std::to_string(prescale);
    coordd_tensor_t tensor = r.Tensor(name.c_str(), COORDD_FLOAT32, data, data, shape);
    RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_AVERAGE, &options, &work),
              "submit");
    r.Finish(work);
    coordd_work_release(work);
    const float sum = static_cast<float>(r.size() * (r.size() + 1) / 2);
    Require(r.Download<float>(data, 30001) ==
                std::vector<float>(30001, static_cast<float>(prescale) * sum),
            "average with prescale factor " + std::to_string(prescale));
  }
}

// What the stand-in of NCCL has seen of that, of registered memory, and of communicators that were
// shrunk; and what the last one was called.
inline void SayHowItAveraged(void* fake) {
  if (const auto shrunk =
          reinterpret_cast<long (*)()>(dlsym(fake, "fake_nccl_shrunk_communicators")))
    std::printf("nccl shrunk %ld\n", shrunk());
  if (const auto multiplied =
          reinterpret_cast<long (*)()>(dlsym(fake, "fake_nccl_multiplied_calls")))
    std::printf("nccl multiplied %ld\n", multiplied());
  // Of the driver, which the stand-in is linked to.
  if (const auto scalings = reinterpret_cast<long (*)()>(dlsym(fake, "fake_cuda_scalings")))
    std::printf("cuda scalings %ld\n", scalings());
  if (const auto registered =
          reinterpret_cast<long (*)()>(dlsym(fake, "fake_nccl_registered_buffers")))
    std::printf("nccl registered %ld\n", registered());
  if (const auto name = reinterpret_cast<const char* (*)()>(dlsym(fake, "fake_nccl_last_name")))
    std::printf("nccl name [%s]\n", name());
}

}  // namespace coordd
