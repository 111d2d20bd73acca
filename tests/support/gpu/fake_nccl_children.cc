// Communicators that fake_nccl.so makes of others: ncclCommShrink's and ncclCommSplit's.
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_nccl.h"
#include "tests/support/gpu/fake_nccl_comm.h"
#include "tests/support/gpu/fake_nccl_rules.h"
#include "tests/support/gpu/fake_nccl_version.h"

using namespace coordd;

namespace {

std::atomic<long> shrunk_count = 0, split_count = 0;

}  // namespace

namespace coordd {

// As NCCL's, the handle appears at the end, also of what has failed or was stopped.
void EndChild(FakeComm& comm) {
  __atomic_store_n(comm.child_slot, new NcclCommHandle{std::move(comm.child)}, __ATOMIC_RELEASE);
  NoteFakeHandle();
  comm.shrinking = false;
}

void PollChild(FakeComm& comm) {
  std::lock_guard lock(comm.mu);
  if (comm.child == nullptr || FakeNcclSettings().Get("shrink_never") != 0) return;
  FakeComm& child = *comm.child;
  const char* const fails = comm.splits ? "split_fails" : "shrink_fails";
  if (const long error = FakeNcclSettings().Get(fails); error != 0) {
    SetError(comm.splits ? "the fake was told to fail while it splits"
                         : "the fake was told to fail while it shrinks");
    child.error = static_cast<int>(error);
  } else {
    PollInit(child);
  }
  if (child.error != 0) comm.error = child.error.load();
  if (child.initialised) ++(comm.splits ? split_count : shrunk_count);
  if (child.initialised && comm.splits) ++comm.sharers;
  if (child.initialised || child.error != 0) EndChild(comm);
}

}  // namespace coordd

extern "C" {

long fake_nccl_shrunk_communicators() { return shrunk_count; }
long fake_nccl_split_communicators() { return split_count; }

#if FAKE_NCCL_SHRINKS
NcclResult ncclCommShrink(NcclComm handle, int* excluded, int count, NcclComm* shrunk,
                          NcclConfig* config, int flags) {
  FakeComm& comm = *handle->comm;
  *shrunk = nullptr;
  if (comm.error != 0) return static_cast<NcclResult>(comm.error.load());
  if (InFakeGroup()) return Refuse("ncclCommShrink in a group");
  if (const char* rule = ShrinkRule(comm, excluded, count, config, flags); rule != nullptr)
    return Refuse(rule);
  if (const long error = FakeNcclSettings().Get("shrink_error"); error != 0) {
    SetError("the fake was told not to shrink");
    return static_cast<NcclResult>(error);
  }
  auto child = std::make_shared<FakeComm>();
  child->size = comm.size - count;
  child->rank = comm.rank;
  for (int i = 0; i < count; ++i) child->rank -= excluded[i] < comm.rank ? 1 : 0;
  std::lock_guard lock(comm.mu);
  ++comm.children;
  child->id = ChildId(comm);
  child->clique = FakeClique::Attach(&child->id, 1, child->size, child->rank);
  if (child->clique == nullptr || !child->clique->ShrunkBy(ShrinkDigest(comm, excluded, count)))
    return Refuse("ncclCommShrink by other ranks, or behind other calls, than another rank's");
  child->device = comm.device;
  child->clique->SetDevice(child->rank, static_cast<uint32_t>(child->device));
  child->polls = FakeNcclSettings().Get("shrink_polls");
  child->abort_flag = fake_cuda_allocate_pinned();
  comm.child = std::move(child);
  comm.child_slot = shrunk;
  comm.splits = false;
  comm.shrinking = true;
  return NcclResult::kInProgress;
}
#endif
NcclResult ncclCommSplit(NcclComm handle, int color, int key, NcclComm* split, NcclConfig* config) {
  FakeComm& comm = *handle->comm;
  *split = nullptr;
  if (comm.error != 0) return static_cast<NcclResult>(comm.error.load());
  if (InFakeGroup()) return Refuse("ncclCommSplit in a group");
  if (const char* rule = SplitRule(comm, color, key, config); rule != nullptr) return Refuse(rule);
  if (const long error = FakeNcclSettings().Get("split_error"); error != 0) {
    SetError("the fake was told not to split");
    return static_cast<NcclResult>(error);
  }
  auto child = std::make_shared<FakeComm>();
  child->size = comm.size;
  child->rank = comm.rank;
  std::lock_guard lock(comm.mu);
  ++comm.children;
  child->id = ChildId(comm);
  child->clique = FakeClique::Attach(&child->id, 1, child->size, child->rank);
  if (child->clique == nullptr) return Refuse("ncclCommSplit more often than another rank");
  child->device = comm.device;
  child->clique->SetDevice(child->rank, static_cast<uint32_t>(child->device));
  child->polls = 1;
  child->abort_flag = fake_cuda_allocate_pinned();
  child->blocking = true;
  child->shares_with = handle->comm;
  comm.child = std::move(child);
  comm.child_slot = split;
  comm.splits = true;
  comm.shrinking = true;
  return NcclResult::kInProgress;
}

}  // extern "C"
