// Memory of the program that NCCL is told of.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
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

// Of NCCL's own, registered on all ranks.
class MemoryOfNccl {
 public:
  MemoryOfNccl(RankOnDevice& r, int64_t bytes) : rank_(r) {
    RequireOk(coordd_alloc_device(r.device(), bytes, &memory_), "allocate");
    RequireOk(coordd_register_device(r.worker(), 0, r.device(), memory_, bytes, 0), "register");
  }
  void* memory() const { return memory_; }
  void Unregister() {
    RequireOk(coordd_unregister_device(rank_.worker(), 0, memory_, 0), "unregister");
    RequireOk(coordd_free_device(memory_), "free");
  }
  // In place.
  void Reduce(const char* name) {
    constexpr int64_t kCount = 1000;
    const float* const values =
        rank_.Upload(std::vector<float>(kCount, static_cast<float>(rank_.rank() + 1)));
    Require(CopyAsync(rank_.runtime(), rank_.device(), memory_, values, kCount * sizeof(float),
                      static_cast<CudaStream>(rank_.stream()))
                .ok(),
            "copy");
    coordd_tensor_t tensor = rank_.Tensor(name, COORDD_FLOAT32, memory_, memory_, &kCount);
    coordd_work_t* work = nullptr;
    RequireOk(coordd_allreduce_async(rank_.worker(), &tensor, COORDD_SUM, nullptr, &work),
              "submit");
    rank_.Finish(work);
    coordd_work_release(work);
    const float sum = static_cast<float>(rank_.size() * (rank_.size() + 1) / 2);
    Require(rank_.Download<float>(memory_, kCount) == std::vector<float>(kCount, sum), name);
  }

 private:
  RankOnDevice& rank_;
  void* memory_ = nullptr;
};

// A rank that leaves ends the communicators of those that are not through yet.
inline void AwaitAll(RankOnDevice& r, const char* name) {
  RequireOk(coordd_barrier(r.worker(), name, nullptr), name);
}

// Rank 0 lets go of the first piece before it comes to the second, the others begin with both.
inline void WindowsOfThreads(RankOnDevice& r) {
  static constexpr int64_t kBytes = 1 << 16;
  if (r.rank() == 0) {
    MemoryOfNccl(r, kBytes).Unregister();
    MemoryOfNccl(r, kBytes).Unregister();
  } else {
    std::vector<std::unique_ptr<MemoryOfNccl>> pieces(2);
    std::vector<std::thread> threads;
    for (std::unique_ptr<MemoryOfNccl>& piece : pieces)
      threads.emplace_back([&r, &piece] { piece = std::make_unique<MemoryOfNccl>(r, kBytes); });
    for (std::thread& thread : threads) thread.join();
    for (std::unique_ptr<MemoryOfNccl>& piece : pieces) piece->Unregister();
  }
  AwaitAll(r, "after threads");
  MemoryOfNccl third(r, kBytes);
  third.Reduce("third");
  third.Unregister();
  AwaitAll(r, "last");
  std::printf("ok windows\n");
}

// What is registered is not freed. Rank 0 is refused what the others register, which is no reason
// for the next one to fail.
inline void WindowsOutOfStep(RankOnDevice& r) {
  constexpr int64_t kBytes = 1 << 16;
  MemoryOfNccl first(r, kBytes);
  first.Reduce("first");
  Require(coordd_free_device(first.memory()) == COORDD_FAILED_PRECONDITION,
          "free what is registered");
  void* second = nullptr;
  RequireOk(coordd_alloc_device(r.device(), kBytes, &second), "allocate");
  void* const given = r.rank() == 0 ? first.memory() : second;
  const coordd_status_t status =
      coordd_register_device(r.worker(), 0, r.device(), given, kBytes, 1);
  std::printf("out of step: %s %s\n", coordd_status_name(status), coordd_last_error());
  Require(status == (r.rank() == 0 ? COORDD_INVALID_ARGUMENT : COORDD_DEADLINE_EXCEEDED),
          "register out of step");
  RequireOk(coordd_free_device(second), "free what was not registered");
  AwaitAll(r, "in step");
  MemoryOfNccl third(r, kBytes);
  third.Reduce("third");
  first.Reduce("first again");
  third.Unregister();
  first.Unregister();
  AwaitAll(r, "last");
  std::printf("ok windows\n");
}

// Rank 2 leaves the second call out. The others are told who has not come, and the next call
// of all is as if nothing had been. `seconds`: their limit, with 0 COORDD_TIMEOUT.
inline void WindowsLeftOut(RankOnDevice& r, double seconds) {
  constexpr int64_t kBytes = 1 << 16;
  constexpr double kPatience = 300;  // against hangs only
  MemoryOfNccl first(r, kBytes);
  const int calls = seconds > 0 ? 2 : 1;
  for (int i = 0; r.rank() != 2 && i < calls; ++i) {
    void* second = nullptr;
    RequireOk(coordd_alloc_device(r.device(), kBytes, &second), "allocate");
    const coordd_status_t status =
        coordd_register_device(r.worker(), 0, r.device(), second, kBytes, seconds);
    std::printf("left out: %s %s\n", coordd_status_name(status), coordd_last_error());
    RequireOk(coordd_free_device(second), "free what was not registered");
  }
  const std::string told = "told/" + std::to_string(r.rank());
  RequireOk(coordd_store_set(r.worker(), told.c_str(), "", 0, kPatience), "say");
  for (int rank = 0; rank < r.size(); ++rank) {
    char nothing[1];
    size_t bytes = 0;
    RequireOk(coordd_store_get(r.worker(), ("told/" + std::to_string(rank)).c_str(), nothing,
                               sizeof(nothing), &bytes, kPatience),
              "hear");
  }
  MemoryOfNccl third(r, 2 * kBytes);
  third.Reduce("third");
  first.Reduce("first");
  third.Unregister();
  MemoryOfNccl fourth(r, kBytes);
  fourth.Reduce("fourth");
  fourth.Unregister();
  first.Unregister();
  AwaitAll(r, "last");
  std::printf("ok windows\n");
}

// Three pieces of it, of which the third comes when the first has gone. more > 0: of the second
// rank 1 has as many bytes more; -2: rank 1 lets go of the first one behind the third. -3 to -6:
// WindowsOfThreads, WindowsOutOfStep, WindowsLeftOut, once with a limit and once without.
inline void Windows(RankOnDevice& r, int more) {
  if (more == -3) return WindowsOfThreads(r);
  if (more == -4) return WindowsOutOfStep(r);
  if (more == -5) return WindowsLeftOut(r, 1);
  if (more == -6) return WindowsLeftOut(r, 0);
  constexpr int64_t kBytes = 1 << 16;
  const bool odd = r.rank() == 1;
  MemoryOfNccl first(r, kBytes);
  first.Reduce("first");
  MemoryOfNccl second(r, kBytes + (odd && more > 0 ? more : 0));
  second.Reduce("second");
  const bool late = odd && more < -1;
  if (!late) first.Unregister();
  MemoryOfNccl third(r, 2 * kBytes);
  third.Reduce("third");
  second.Reduce("second again");
  if (late) first.Unregister();
  second.Unregister();
  third.Unregister();
  // A rank that leaves ends the communicators of those that are not through yet.
  const float* const one = r.Upload(std::vector<float>(1, 1.0f));
  constexpr int64_t kOne = 1;
  coordd_tensor_t tensor = r.Tensor("last", COORDD_FLOAT32, one, nullptr, &kOne);
  coordd_work_t* work = nullptr;
  RequireOk(coordd_allgather_async(r.worker(), &tensor, nullptr, &work), "submit");
  RequireOk(coordd_work_wait(work, -1), "last");
  coordd_work_release(work);
  std::printf("ok windows\n");
}

}  // namespace coordd
