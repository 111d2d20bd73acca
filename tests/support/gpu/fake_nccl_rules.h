// What NCCL demands of its callers, for fake_nccl.so.
#pragma once

#include <cstdint>

#include "tests/support/gpu/fake_nccl_comm.h"

namespace coordd {

// NULL is on every device.
bool OnDevice(const void* pointer, int device);

// Each: the rule that is broken; nullptr: none is.
// Of a call's type, in a library of this version.
const char* Float8Rule(const FakeCall& call, int version);
const char* ConfigRule(const NcclConfig* config);
const char* ShrinkRule(const FakeComm& comm, const int* excluded, int count,
                       const NcclConfig* config, int flags);
const char* SplitRule(const FakeComm& comm, int color, int key, const NcclConfig* config);

// What a parent's next child is known by, on all ranks alike.
NcclUniqueId ChildId(const FakeComm& parent);
// What all ranks have to be at one about when they shrink it.
uint64_t ShrinkDigest(const FakeComm& parent, const int* excluded, int count);

}  // namespace coordd
