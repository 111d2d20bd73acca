// The fake libraries as a test uses them.
#pragma once

#include <memory>
#include <string>

#include "common/base/dynamic_library.h"
#include "common/base/environment.h"
#include "worker/gpu/nccl/nccl_runtime.h"

namespace coordd {

std::string FakeCudaPath();
std::string FakeNvtxPath();
std::string FakeNvmlPath();
// That of 2.28.9, or another one of the matrix (tests/worker/gpu_matrix.cmake).
std::string FakeNcclPath();
int FakeNcclVersion();              // 22809
std::string FakeNcclVersionText();  // "2.28.9"
bool FakeNcclHas(const char* function);
// For tests of what older versions lack; other tests say what holds there.
#define SKIP_WHERE_NCCL_LACKS(function) \
  if (!FakeNcclHas(function))           \
  GTEST_SKIP() << "NCCL " << FakeNcclVersionText() << " has no " << function

std::string FakeOldNcclPath();      // 2.18.5: no scalable init, no registration, no shrink
std::string FakeLoadedNcclPath();   // 2.27.3, of the name under which others find a loaded NCCL
std::string FakeAncientNcclPath();  // 2.17.1: too old

// An environment in which NCCL is the fake.
Environment FakeNcclEnvironment();
// CHECK-fails: the fakes do not load.
std::shared_ptr<NcclRuntime> OpenFakeGpus();

// For tests that hold on real devices too: the driver and NCCL of this machine when tests/gpu/run
// has set COORDD_TEST_GPU, else the fakes. CHECK-fails: they do not load.
std::string TestCudaPath();
std::shared_ptr<NcclRuntime> OpenTestGpus();

// What the fakes have besides the vendors' functions; as fake_cuda.h and fake_nccl.h.
void SetFakeCuda(const char* name, long value);
long FakeCudaLiveObjects();
int FakeCudaLockHolders();
long FakeCudaFunctionsAsked();
long FakeCudaScalings();
int FakeCudaDeviceOf(const void* pointer);
void SetFakeNccl(const char* name, long value);
std::string TakeBrokenNcclRule();
std::string FakeNcclLastName();
long FakeNcclLiveCommunicators();
long FakeNcclAbortedCommunicators();
long FakeNcclRevokedCommunicators();
long FakeNcclFinalizedCommunicators();
long FakeNcclShrunkCommunicators();
long FakeNcclSplitCommunicators();
long FakeNcclMultipliedCalls();
long FakeNcclRegisteredBuffers();
long FakeNcclWindows();
void SetFakeNvml(const char* name, long value);
long FakeNvmlReads();  // of a device
int FakeNvmlBegun();   // and not ended

}  // namespace coordd
