// What the kind of a tensor means when coordd or a member is lost. PURE
#pragma once

#include "common/protocol/tensor_spec.h"

namespace coordd {

// Whether no rank can have completed the tensor before all members of the set have launched it.
bool NeedsEverybody(const TensorSpec& spec);
// Whether the tensor means the same in another generation.
bool OutlivesGeneration(const TensorSpec& spec);

}  // namespace coordd
