#include "common/protocol/printable_message.h"

#include <gtest/gtest.h>

#include "coordd/v1/admin.pb.h"

namespace coordd {
namespace {

TEST(MakePrintable, ReachesEveryTextOfAMessage) {
  v1::ServerState state;
  state.set_version("\x1b[31m");
  v1::JobState* job = state.add_jobs();
  job->set_name("a\nb");
  v1::StalledTensor* stall = job->add_stalled();
  stall->set_name("grad\u202e");
  v1::WorkerState* worker = job->add_workers();
  worker->set_hostname("node\r1");
  worker->set_stack("train.py, line 3\nin \x1b]0;title\x07");
  MakePrintable(&state);
  EXPECT_EQ(state.version(), "\\x1b[31m");
  EXPECT_EQ(job->name(), "a\\x0ab");
  EXPECT_EQ(stall->name(), "grad\\u202e");
  EXPECT_EQ(worker->hostname(), "node\\x0d1");
  EXPECT_EQ(worker->stack(), "train.py, line 3\nin \\x1b]0;title\\x07");
}

}  // namespace
}  // namespace coordd
