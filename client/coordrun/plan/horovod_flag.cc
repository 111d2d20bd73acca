#include "client/coordrun/plan/horovod_flag.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {
namespace {

constexpr absl::string_view kHorovodModule = "coordd.horovod";
constexpr absl::string_view kTorchModule = "coordd.torch.distributed";

// "python", "python3", "/usr/bin/python3.11", "pypy3".
bool IsPython(absl::string_view program) {
  if (const size_t slash = program.rfind('/'); slash != absl::string_view::npos) {
    program.remove_prefix(slash + 1);
  }
  for (const absl::string_view name : {"python", "pypy"}) {
    if (!absl::StartsWith(program, name)) continue;
    const absl::string_view version = program.substr(name.size());
    return std::all_of(version.begin(), version.end(),
                       [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
  }
  return false;
}

// How many arguments the interpreter's own option takes: 2 for one with a value of its own.
size_t ArgumentsOf(absl::string_view option) {
  const bool takes_value = option == "-W" || option == "-X" || option == "--check-hash-based-pycs";
  return takes_value ? 2 : 1;
}

// Where the script stands behind the interpreter's options: its name, "-", "-m" or "-c".
size_t ScriptOf(const std::vector<std::string>& command) {
  size_t script = 1;
  while (script < command.size()) {
    const std::string& argument = command[script];
    const bool is_option = argument.size() > 1 && argument[0] == '-';
    if (!is_option || argument == "-m" || argument == "-c") break;
    script += ArgumentsOf(argument);
  }
  return script;
}

absl::StatusOr<std::vector<std::string>> UnderModule(const std::vector<std::string>& command,
                                                     absl::string_view flag,
                                                     absl::string_view module) {
  if (command.empty() || !IsPython(command[0])) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": found the command \"", absl::StrJoin(command, " "),
        "\", expected one that begins with python (its variables are given to coordrun, as -x "
        "NAME=VALUE; a script of another kind runs its program by python -m ",
        module, ")"));
  }
  const size_t script = ScriptOf(command);
  if (script >= command.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": found \"", absl::StrJoin(command, " "),
                     "\" without a script, expected python SCRIPT or python -m MODULE"));
  }
  std::vector<std::string> result(command.begin(),
                                  command.begin() + static_cast<std::ptrdiff_t>(script));
  result.emplace_back("-m");
  result.emplace_back(module);
  result.insert(result.end(), command.begin() + static_cast<std::ptrdiff_t>(script), command.end());
  return result;
}

}  // namespace

bool ReadsProgramFromInput(const std::vector<std::string>& command) {
  if (command.empty() || !IsPython(command[0])) return false;
  size_t script = ScriptOf(command);
  while (script + 1 < command.size() && command[script] == "-m" &&
         (command[script + 1] == kHorovodModule || command[script + 1] == kTorchModule)) {
    script += 2;
  }
  return script < command.size() && command[script] == "-";
}

absl::StatusOr<std::vector<std::string>> UnderHorovod(const std::vector<std::string>& command) {
  return UnderModule(command, "--horovod", kHorovodModule);
}

absl::StatusOr<std::vector<std::string>> UnderTorchBackend(
    const std::vector<std::string>& command) {
  return UnderModule(command, "--torch-backend", kTorchModule);
}

}  // namespace coordd
