#include "common/base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace coordd {

std::thread StartThread(const std::string& name, std::function<void()> body) {
  // A new thread inherits the mask: block around its creation, so that no signal can reach it
  // before it runs.
  sigset_t all, before;
  sigfillset(&all);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([name, body = std::move(body)] {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    body();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace coordd
