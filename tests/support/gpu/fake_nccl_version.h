// The version of NCCL that fake_nccl.so stands in for: it has what that version has.
#pragma once

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 22809
#endif

// Functions that came later than the oldest version that coordd takes.
#define FAKE_NCCL_REGISTERS (FAKE_NCCL_VERSION >= 21901)  // ncclCommRegister, ncclMemAlloc
#define FAKE_NCCL_SCALES (FAKE_NCCL_VERSION >= 22301)     // ncclCommInitRankScalable
#define FAKE_NCCL_SHRINKS (FAKE_NCCL_VERSION >= 22703)    // ncclCommShrink, ncclCommWindowRegister
#define FAKE_NCCL_REVOKES (FAKE_NCCL_VERSION >= 22807)    // ncclCommRevoke

namespace coordd {

// What a non-blocking communicator is given is launched by a thread of its own, and so pending.
inline constexpr bool kFakeNcclLaunchesOnThreads = FAKE_NCCL_VERSION >= 22304;
// It takes two ranks on one device, where NCCL_MULTI_RANK_GPU_ENABLE says so.
inline constexpr bool kFakeNcclSharesDevices = FAKE_NCCL_VERSION >= 23000;

}  // namespace coordd
