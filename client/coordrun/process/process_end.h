// How a process ended, in numbers and in words. PURE
#pragma once

#include <string>

namespace coordd {

// How a process ended.
struct ProcessEnd {
  int code = 0;
  int signal = 0;     // 0: it exited by itself, with `code`
  bool lost = false;  // the connection to its host ended first: the rest is about the connection
  bool unreached = false;  // and it had never been there: the worker was not started

  bool ok() const { return code == 0 && signal == 0 && !lost; }
  // The status as a shell has it: 128 + signal.
  int shell_status() const {
    if (lost && code == 0 && signal == 0) return 1;
    return signal != 0 ? 128 + signal : code;
  }
  // "exited with status 3", "was killed by SIGKILL", "was lost with the connection to its host",
  // "was not started, since its host is not reached".
  std::string ToString() const;
};

// "SIGTERM"; "signal 64" for one without a name.
std::string SignalName(int signal);

}  // namespace coordd
