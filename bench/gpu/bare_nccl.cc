#include "bench/gpu/bare_nccl.h"

#include <string>

#include "common/base/dynamic_library.h"

namespace coordd::bench {
namespace {

// As the library opens it.
NcclFunctions OpenNccl(const Environment& environment) {
  const auto named = environment.find(kNcclVariable);
  auto library = DynamicLibrary::OpenLoaded(kNcclLibrary);
  if (!library.ok())
    library = DynamicLibrary::Open(named != environment.end() ? named->second : kNcclLibrary);
  Require(library.ok(), library.status().ToString());
  NcclFunctions nccl;
  const auto find = [&library](auto& function, const char* name) {
    function =
        library->Function<std::remove_pointer_t<std::remove_reference_t<decltype(function)>>>(name);
    Require(function != nullptr, std::string("NCCL has no ") + name);
  };
  find(nccl.GetErrorString, "ncclGetErrorString");
  find(nccl.GetUniqueId, "ncclGetUniqueId");
  find(nccl.CommInitRankConfig, "ncclCommInitRankConfig");
  find(nccl.CommGetAsyncError, "ncclCommGetAsyncError");
  find(nccl.CommFinalize, "ncclCommFinalize");
  find(nccl.CommDestroy, "ncclCommDestroy");
  find(nccl.AllReduce, "ncclAllReduce");
  find(nccl.Broadcast, "ncclBroadcast");
  find(nccl.AllGather, "ncclAllGather");
  find(nccl.ReduceScatter, "ncclReduceScatter");
  find(nccl.GroupStart, "ncclGroupStart");
  find(nccl.GroupEnd, "ncclGroupEnd");
  return nccl;
}

}  // namespace

BareNccl::BareNccl(const Environment& environment, DeviceClock& device, int32_t rank, int32_t size,
                   const std::function<void(void*, int64_t)>& share)
    : device_(device), size_(size), nccl_(OpenNccl(environment)) {
  NcclUniqueId id = {};
  if (rank == 0) Require(nccl_.GetUniqueId(&id) == NcclResult::kSuccess, "ncclGetUniqueId");
  share(&id, sizeof(id));
  NcclConfig config;
  config.blocking = 1;  // as torch's, by default
  Call([&] { return nccl_.CommInitRankConfig(&comm_, size, id, rank, &config); });
}

BareNccl::~BareNccl() {
  Call([this] { return nccl_.CommFinalize(comm_); });
  nccl_.CommDestroy(comm_);
}

void BareNccl::Call(const std::function<NcclResult()>& call) {
  const auto scope = DeviceScope::Enter(device_.runtime(), device_.device());
  NcclResult result = call();
  while (result == NcclResult::kSuccess || result == NcclResult::kInProgress) {
    if (grouped_) return;
    NcclResult asynchronous = NcclResult::kSuccess;
    result = nccl_.CommGetAsyncError(comm_, &asynchronous);
    if (result == NcclResult::kSuccess) result = asynchronous;
    if (result == NcclResult::kSuccess) return;
  }
  Require(false, std::string("bare NCCL: ") + nccl_.GetErrorString(result));
}

void BareNccl::Allreduce(const float* input, float* output, int64_t count) {
  Call([&] {
    return nccl_.AllReduce(input, output, static_cast<size_t>(count), NcclType::kFloat32,
                           NcclOp::kSum, comm_, device_.stream());
  });
}

void BareNccl::Broadcast(float* buffer, int64_t count) {
  Call([&] {
    return nccl_.Broadcast(buffer, buffer, static_cast<size_t>(count), NcclType::kFloat32, 0, comm_,
                           device_.stream());
  });
}

void BareNccl::Allgather(const float* input, float* output, int64_t count) {
  Call([&] {
    return nccl_.AllGather(input, output, static_cast<size_t>(count / size_), NcclType::kFloat32,
                           comm_, device_.stream());
  });
}

void BareNccl::ReduceScatter(const float* input, float* output, int64_t count) {
  Call([&] {
    return nccl_.ReduceScatter(input, output, static_cast<size_t>(count / size_),
                               NcclType::kFloat32, NcclOp::kSum, comm_, device_.stream());
  });
}

void BareNccl::Grouped(const std::function<void()>& calls) {
  Call([&] {
    NcclResult result = nccl_.GroupStart();
    grouped_ = true;
    calls();
    grouped_ = false;
    const NcclResult ended = nccl_.GroupEnd();
    return result == NcclResult::kSuccess ? ended : result;
  });
}

}  // namespace coordd::bench
