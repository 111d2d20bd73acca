#include "tests/support/gpu/fake_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/base/check.h"
#include "common/machine/build_info.h"

namespace coordd {
namespace {

template <typename Function>
Function* Find(const std::string& library, const char* name) {
  auto opened = DynamicLibrary::Open(library);
  COORDD_CHECK(opened.ok());
  Function* const function = opened->Function<Function>(name);
  COORDD_CHECK(function != nullptr);
  return function;
}

}  // namespace

std::string FakeNvtxPath() { return FAKE_NVTX; }
std::string FakeNvmlPath() { return FAKE_NVML; }
std::string FakeCudaPath() { return FAKE_CUDA; }
std::string FakeNcclPath() {
  const char* const other = getenv("COORDD_TEST_FAKE_NCCL");
  return other != nullptr ? other : FAKE_NCCL;
}
int FakeNcclVersion() {
  int version = 0;
  Find<NcclResult(int*)>(FakeNcclPath(), "ncclGetVersion")(&version);
  return version;
}
bool FakeNcclHas(const char* function) {
  auto opened = DynamicLibrary::Open(FakeNcclPath());
  COORDD_CHECK(opened.ok());
  return opened->Function<void()>(function) != nullptr;
}
std::string FakeNcclVersionText() { return NcclVersionText(FakeNcclVersion()); }
std::string FakeOldNcclPath() { return FAKE_NCCL_OLD; }
std::string FakeLoadedNcclPath() { return FAKE_NCCL_LOADED; }
std::string FakeAncientNcclPath() { return FAKE_NCCL_ANCIENT; }

Environment FakeNcclEnvironment() { return {{kNcclVariable, FakeNcclPath()}}; }

std::shared_ptr<NcclRuntime> OpenFakeGpus() {
  auto runtime = NcclRuntime::Open(FakeNcclEnvironment(), FakeCudaPath());
  COORDD_CHECK(runtime.ok());
  return *std::move(runtime);
}

std::string TestCudaPath() {
  return ReadEnvironment().count("COORDD_TEST_GPU") > 0 ? kCudaDriverLibrary : FakeCudaPath();
}

std::shared_ptr<NcclRuntime> OpenTestGpus() {
  const Environment environment = ReadEnvironment();
  if (environment.count("COORDD_TEST_GPU") == 0) return OpenFakeGpus();
  auto runtime = NcclRuntime::Open(environment);
  if (!runtime.ok()) std::fprintf(stderr, "%s\n", runtime.status().ToString().c_str());
  COORDD_CHECK(runtime.ok());
  const DeviceRuntime& device = *(*runtime)->device;
  std::printf("on %d x %s, NCCL %d\n", device.device_count(), device.identity(0).model.c_str(),
              (*runtime)->nccl.version);
  return *std::move(runtime);
}

void SetFakeNvml(const char* name, long value) {
  Find<void(const char*, long)>(FakeNvmlPath(), "fake_nvml_set")(name, value);
}
long FakeNvmlReads() { return Find<long()>(FakeNvmlPath(), "fake_nvml_reads")(); }
int FakeNvmlBegun() { return Find<int()>(FakeNvmlPath(), "fake_nvml_begun")(); }

void SetFakeCuda(const char* name, long value) {
  Find<void(const char*, long)>(FakeCudaPath(), "fake_cuda_set")(name, value);
}
long FakeCudaLiveObjects() { return Find<long()>(FakeCudaPath(), "fake_cuda_live_objects")(); }
int FakeCudaLockHolders() { return Find<int()>(FakeCudaPath(), "fake_cuda_lock_holders")(); }
long FakeCudaFunctionsAsked() {
  return Find<long()>(FakeCudaPath(), "fake_cuda_functions_asked")();
}
long FakeCudaScalings() { return Find<long()>(FakeCudaPath(), "fake_cuda_scalings")(); }
int FakeCudaDeviceOf(const void* pointer) {
  return Find<int(const void*)>(FakeCudaPath(), "fake_cuda_device_of")(pointer);
}
void SetFakeNccl(const char* name, long value) {
  Find<void(const char*, long)>(FakeNcclPath(), "fake_nccl_set")(name, value);
}
std::string TakeBrokenNcclRule() {
  return Find<const char*()>(FakeNcclPath(), "fake_nccl_broken_rule")();
}
std::string FakeNcclLastName() {
  return Find<const char*()>(FakeNcclPath(), "fake_nccl_last_name")();
}
long FakeNcclLiveCommunicators() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_live_communicators")();
}
long FakeNcclAbortedCommunicators() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_aborted_communicators")();
}
long FakeNcclShrunkCommunicators() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_shrunk_communicators")();
}
long FakeNcclSplitCommunicators() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_split_communicators")();
}
long FakeNcclRevokedCommunicators() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_revoked_communicators")();
}
long FakeNcclFinalizedCommunicators() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_finalized_communicators")();
}
long FakeNcclMultipliedCalls() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_multiplied_calls")();
}
long FakeNcclRegisteredBuffers() {
  return Find<long()>(FakeNcclPath(), "fake_nccl_registered_buffers")();
}
long FakeNcclWindows() { return Find<long()>(FakeNcclPath(), "fake_nccl_windows")(); }

}  // namespace coordd
