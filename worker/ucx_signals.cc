#include "worker/ucx_signals.h"

#include <dlfcn.h>
#include <signal.h>
#include <ucs/debug/debug.h>

#include "common/environment.h"

namespace coordd {
namespace {

struct Taken {
  int signal;
  const char* wish;  // the variable with which a user asks for it
};
constexpr Taken kTaken[] = {{SIGSEGV, "UCX_HANDLE_ERRORS"}, {SIGBUS, "UCX_HANDLE_ERRORS"},
                            {SIGFPE, "UCX_HANDLE_ERRORS"},  {SIGILL, "UCX_HANDLE_ERRORS"},
                            {SIGABRT, "UCX_HANDLE_ERRORS"}, {SIGHUP, "UCX_DEBUG_SIGNO"}};

// Where the library is loaded that this address is in; nullptr: nowhere.
void* LibraryOf(void* address) {
  Dl_info found = {};
  return address != nullptr && dladdr(address, &found) != 0 ? found.dli_fbase : nullptr;
}

void* HandlerOf(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) != 0) return nullptr;
  if ((action.sa_flags & SA_SIGINFO) != 0) return reinterpret_cast<void*>(action.sa_sigaction);
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return nullptr;
  return reinterpret_cast<void*>(action.sa_handler);
}

}  // namespace

void GiveBackSignals() {
  void* const ucs = LibraryOf(reinterpret_cast<void*>(&ucs_debug_disable_signal));
  for (const Taken& taken : kTaken) {
    if (HasVariable(taken.wish)) continue;
    // Of a signal that it has not taken UCX would complain.
    if (ucs != nullptr && LibraryOf(HandlerOf(taken.signal)) == ucs)
      ucs_debug_disable_signal(taken.signal);
  }
}

}  // namespace coordd
