// Asks this process where its program's threads are: a signal whose handler writes their stacks
// into a file, as Python's faulthandler does, which needs no lock of the interpreter's. The program
// may be anywhere, also in a call that never returns. (io)
#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace coordd {

struct StackSource {
  int signal = 0;  // 0: there is none
  int fd = -1;     // of a file of the program's, that the handler appends to
};

// Thread-safe.
class StackProbe {
 public:
  explicit StackProbe(StackSource source) : source_(source) {}

  // Signals the main thread, unless nobody handles that signal (any more): it would end the
  // process.
  void Ask();
  // What has been written since the last call, once; empty when nothing has come.
  std::string Take();

 private:
  const StackSource source_;
  Mutex mu_;
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
