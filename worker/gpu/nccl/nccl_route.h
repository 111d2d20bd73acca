// Which tensors NCCL could carry. PURE: every rank says the same of a tensor, whatever it has.
#pragma once

#include "common/protocol/tensor_spec.h"
#include "worker/gpu/nccl/device_claim.h"

namespace coordd {

// On a device, and of a kind, type and operator that some NCCL and our kernels have. 16-bit
// integers are reduced by no NCCL; an average of integers truncates what has to be divided exactly,
// which the host does. Such tensors are staged.
bool FitsNccl(const TensorSpec& spec);

// Whether NCCL carries a tensor that FitsNccl, by what the ranks of its set have agreed on: not
// every NCCL reduces float8 on every GPU.
bool CarriedByNccl(const TensorSpec& spec, const DeviceDecision& decision);

// Whether all scaling of a tensor that travels alone is left to NCCL, which then multiplies each
// input with the product of the factors before it adds (CollectiveArgs::input_factor), so that
// nothing has to pass over the tensor for it. Only where the result has the same bits: the factors
// are powers of two and make numbers smaller, in types whose exponents have room for that. And only
// where it costs nothing else: what is scaled no switch reduces (NVLS), which carries what is large
// and may be had where a GPU of the set has multicast. `size`: of the set.
bool NcclMultiplies(const TensorSpec& spec, int32_t size, const DeviceDecision& decision);

}  // namespace coordd
