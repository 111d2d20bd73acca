// What collective a member of a lane is at, in one word: members say it with their first step, so
// that ranks whose programs call different things hear so. PURE.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// Never 0. Equal on all members of a collective; another one where its kind, root, operator, dtype
// or number of elements is (modulo 2^32; of what is only moved, of bytes). What members may have
// different sizes of, a gather or an alltoall of uneven blocks, is the same word for all sizes.
uint64_t CallWord(const CollectiveArgs& args);

// FAILED_PRECONDITION: "member 1 of the group calls broadcast of 8 bytes from member 0, this one
// allreduce (sum) of 4 float32".
absl::Status DifferentCalls(int32_t member, uint64_t its, uint64_t own);

}  // namespace coordd
