// What a command of Python's runs, and coordrun --horovod and --torch-backend: what is run instead
// of `python train.py`. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace coordd {

// The command of an interpreter with `-m coordd.horovod` before its script, so that the script's
// `import horovod.torch` finds coordd: "python3 -u train.py --lr 1" becomes "python3 -u -m
// coordd.horovod train.py --lr 1"; "-m package" and "-c text" are kept behind it. INVALID_ARGUMENT:
// the command is not python's, or it has no script.
absl::StatusOr<std::vector<std::string>> UnderHorovod(const std::vector<std::string>& command);

// The command under coordd.torch.distributed, which has torch.distributed's "gloo" mean coordd.
absl::StatusOr<std::vector<std::string>> UnderTorchBackend(const std::vector<std::string>& command);

// `python -`, also as UnderHorovod has it: the interpreter reads its program from stdin.
bool ReadsProgramFromInput(const std::vector<std::string>& command);

}  // namespace coordd
