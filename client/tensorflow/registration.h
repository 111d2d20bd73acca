// The ops and their kernels.
#pragma once

#include <string>

namespace coordd::tensorflow {

// Registers all of them with the process's TensorFlow. Once, while TensorFlow loads this library,
// which then makes a Python function of each. Empty: done; else one sentence.
std::string RegisterOps();

}  // namespace coordd::tensorflow
