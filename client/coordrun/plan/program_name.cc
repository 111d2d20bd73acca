#include "client/coordrun/plan/program_name.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace coordd {
namespace {

// Programs that run another one. What stands behind their options is that one.
struct Wrapper {
  const char* name;
  const char* with_value;  // options whose value is the next word
  bool is_python = false;  // its -m names a module
  bool is_shell = false;
  const char* verb = "";   // "launch" of accelerate: a word before the options
  bool has_image = false;  // the first word is that of a container
};

constexpr Wrapper kWrappers[] = {
    {.name = "env", .with_value = "-u --unset -C --chdir"},
    {.name = "nice", .with_value = "-n --adjustment"},
    {.name = "time", .with_value = "-f -o"},
    {.name = "stdbuf", .with_value = "-i -o -e"},
    {.name = "numactl",
     .with_value = "-N -m -C -p -i --cpunodebind --membind --physcpubind --preferred"},
    {.name = "bash", .with_value = "-o -O --rcfile --init-file", .is_shell = true},
    {.name = "sh", .with_value = "-o", .is_shell = true},
    {.name = "dash", .with_value = "-o", .is_shell = true},
    {.name = "zsh", .with_value = "-o", .is_shell = true},
    {.name = "torchrun", .with_value = "*", .is_python = true},
    {.name = "torch.distributed.run", .with_value = "*", .is_python = true},
    {.name = "torch.distributed.launch", .with_value = "*", .is_python = true},
    {.name = "deepspeed", .with_value = "*", .is_python = true},
    {.name = "accelerate", .with_value = "*", .is_python = true, .verb = "launch"},
    {.name = "nsys", .with_value = "*", .verb = "profile"},
    {.name = "singularity",
     .with_value = "-B --bind -H --home --env",
     .verb = "exec",
     .has_image = true},
    {.name = "apptainer",
     .with_value = "-B --bind -H --home --env",
     .verb = "exec",
     .has_image = true},
    {.name = "ch-run",
     .with_value = "-b --bind -c --cd -g --gid -m --mount -u --uid --join-pid",
     .has_image = true},
    // How --horovod and --torch-backend run a script.
    {.name = "coordd.horovod", .with_value = "", .is_python = true},
    {.name = "coordd.torch.distributed", .with_value = "", .is_python = true},
};
constexpr Wrapper kPython = {
    .name = "python", .with_value = "-W -X --check-hash-based-pycs", .is_python = true};

absl::string_view FileName(absl::string_view path) {
  return path.substr(path.find_last_of('/') + 1);
}

// "python", "python3.11", "pypy3", "ipython".
bool IsPythonName(absl::string_view name) {
  for (const absl::string_view known : {"python", "pypy", "ipython"}) {
    if (!absl::StartsWith(name, known)) continue;
    const absl::string_view version = name.substr(known.size());
    if (std::all_of(version.begin(), version.end(),
                    [](char c) { return absl::ascii_isdigit(c) || c == '.'; }))
      return true;
  }
  return false;
}

const Wrapper* WrapperOf(absl::string_view name) {
  for (const Wrapper& wrapper : kWrappers)
    if (name == wrapper.name) return &wrapper;
  return IsPythonName(name) ? &kPython : nullptr;
}

bool IsScript(absl::string_view word) {
  return absl::EndsWith(word, ".py") || absl::EndsWith(word, ".sh");
}

bool TakesValue(const Wrapper& wrapper, absl::string_view option) {
  const std::vector<absl::string_view> names = absl::StrSplit(wrapper.with_value, ' ');
  return std::find(names.begin(), names.end(), option) != names.end();
}

// What a wrapper runs.
struct Program {
  size_t word = 0;  // its index; 0: none, or not by name
  bool is_module = false;
};

Program ProgramOf(const Wrapper& wrapper, const std::vector<std::string>& command, size_t begin) {
  // Whose options are too many to be listed: the script is known by its ending.
  const bool any_option = wrapper.with_value == absl::string_view("*");
  size_t i = begin + 1;
  if (wrapper.verb[0] != '\0') {
    if (i >= command.size() || command[i] != wrapper.verb) return {};
    ++i;
  }
  bool image = wrapper.has_image;
  for (; i < command.size(); ++i) {
    const std::string& word = command[i];
    const bool is_option = word.size() > 1 && word[0] == '-';
    if (wrapper.is_python && (word == "-m" || word == "--module"))
      return i + 1 < command.size() ? Program{i + 1, true} : Program{};
    // A command in a string has no name, nor has one from stdin.
    if ((wrapper.is_python || wrapper.is_shell) && word == "-c") return {};
    if (wrapper.is_python && word == "-") return {};
    if (is_option && word != "--") {
      if (TakesValue(wrapper, word)) ++i;
      continue;
    }
    const bool assigns = wrapper.name == absl::string_view("env") && absl::StrContains(word, '=');
    if (word == "--" || word == "-" || assigns) continue;
    if (any_option && !IsScript(word) && WrapperOf(FileName(word)) == nullptr) continue;
    if (!image) return {i, false};
    image = false;
  }
  return {};
}

}  // namespace

std::string ProgramName(const std::vector<std::string>& command) {
  size_t begin = 0;
  bool is_module = false;
  // Each round is nearer to the end of the command.
  while (begin < command.size()) {
    const absl::string_view word = command[begin];
    const Wrapper* wrapper = WrapperOf(is_module ? word : FileName(word));
    const Program program = wrapper == nullptr ? Program{} : ProgramOf(*wrapper, command, begin);
    if (program.word == 0) break;
    begin = program.word;
    is_module = program.is_module;
  }
  if (begin >= command.size()) return "";
  absl::string_view name = is_module ? absl::string_view(command[begin]) : FileName(command[begin]);
  if (IsScript(name) && name.size() > 3) name.remove_suffix(3);
  return std::string(name);
}

}  // namespace coordd
