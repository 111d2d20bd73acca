#include "common/base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <string>

namespace coordd {
namespace {

TEST(StartThread, GivesTheThreadItsName) {
  std::string name;
  StartThread("coordinator", [&] {
    char buffer[16] = {};
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
  }).join();
  EXPECT_EQ(name, "coordinator");
}

TEST(StartThread, CutsALongNameInsteadOfLosingIt) {
  std::string name;
  StartThread("a-name-of-more-than-15", [&] {
    char buffer[16] = {};
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
  }).join();
  EXPECT_EQ(name, "a-name-of-more-");
}

TEST(StartThread, BlocksSignalsInTheThreadButNotInItsMaker) {
  sigset_t inside, outside;
  StartThread("masked", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  pthread_sigmask(SIG_SETMASK, nullptr, &outside);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) {
    EXPECT_TRUE(sigismember(&inside, signal)) << signal;
    EXPECT_FALSE(sigismember(&outside, signal)) << signal;
  }
  EXPECT_FALSE(sigismember(&inside, SIGSEGV)) << "faults must end the process";
}

}  // namespace
}  // namespace coordd
