// What a command runs: `python3 -u train.py` is train. PURE
#pragma once

#include <string>
#include <vector>

namespace coordd {

// The name of the script, module or program, without its folders and without .py or .sh: behind
// interpreters, env, torchrun, `accelerate launch` and the like. Empty: there is none.
std::string ProgramName(const std::vector<std::string>& command);

}  // namespace coordd
