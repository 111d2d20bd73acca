#include "worker/base/stack_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/owned_fd.h"

namespace coordd {
namespace {

int file = -1;

void WriteFrames(int) {
  constexpr char kText[] = "  somewhere\n";
  [[maybe_unused]] const ssize_t written = write(file, kText, sizeof(kText) - 1);
}

class StackProbeTest : public testing::Test {
 protected:
  StackProbeTest() : fd_(memfd_create("test", MFD_CLOEXEC)) { file = fd_.get(); }
  ~StackProbeTest() override { signal(number_, SIG_DFL); }

  const int number_ = SIGRTMAX - 1;
  OwnedFd fd_;
};

// The test runs on the main thread: the handler has returned when Ask does.
TEST_F(StackProbeTest, GetsWhatTheHandlerWritesOnce) {
  signal(number_, WriteFrames);
  StackProbe probe({number_, fd_.get()});
  EXPECT_EQ(probe.Take(), "");
  for (int round = 0; round < 2; ++round) {
    probe.Ask();
    EXPECT_EQ(probe.Take(), "  somewhere");
    EXPECT_EQ(probe.Take(), "");
  }
}

TEST_F(StackProbeTest, SignalsNobodyWhoWouldDieOfIt) {
  StackProbe probe({number_, fd_.get()});
  probe.Ask();
  EXPECT_EQ(probe.Take(), "");
  StackProbe none({});
  none.Ask();
  EXPECT_EQ(none.Take(), "");
}

}  // namespace
}  // namespace coordd
