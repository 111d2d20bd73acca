#include "client/coordctl/dismiss_view.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

DismissArguments Arguments(const std::string& who) {
  DismissArguments arguments;
  arguments.action = v1::DISMISS_ACTION_DRAIN;
  arguments.who = who;
  return arguments;
}

TEST(DismissRequest, ANumberIsARankAndAnythingElseANode) {
  const v1::DismissRequest rank =
      DismissRequestFrom(Arguments("12"), {{"USER", "alice"}}, "login1");
  EXPECT_EQ(rank.rank(), 12);
  EXPECT_EQ(rank.asked_by(), "alice@login1");
  EXPECT_EQ(DismissRequestFrom(Arguments("node12"), {}, "login1").node(), "node12");
  EXPECT_EQ(DismissRequestFrom(Arguments("10.0.0.1"), {}, "login1").node(), "10.0.0.1");
  EXPECT_EQ(DismissRequestFrom(Arguments("-1"), {}, "login1").node(), "-1");
  // No rank is as large.
  EXPECT_EQ(DismissRequestFrom(Arguments("99999999999"), {}, "login1").node(), "99999999999");
}

TEST(DismissRequest, OnlyTextTravels) {
  const v1::DismissRequest request =
      DismissRequestFrom(Arguments("n\xff"), {{"USER", "a\xff" + std::string(300, 'x')}}, "login1");
  EXPECT_EQ(request.node(), "n?");
  EXPECT_EQ(request.asked_by(), "a?" + std::string(254, 'x'));
  // Cut between characters.
  const std::string long_name = std::string(255, 'x') + "\xc3\xa4";
  EXPECT_EQ(DismissRequestFrom(Arguments("1"), {{"USER", long_name}}, "h").asked_by(),
            std::string(255, 'x'));
}

TEST(DismissRequest, ARankNeedsTheNameOfItsJob) {
  EXPECT_EQ(CheckDismiss(Arguments("0")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(CheckDismiss(Arguments("0")).message()), testing::HasSubstr("--job"));
  EXPECT_TRUE(CheckDismiss(Arguments("node3")).ok());
  DismissArguments named = Arguments("0");
  named.job = "train";
  EXPECT_TRUE(CheckDismiss(named).ok());
}

TEST(DismissText, HasALineForEachWorker) {
  v1::DismissReply reply;
  reply.set_job("train");
  reply.set_grace_seconds(30);
  v1::DismissedWorker* worker = reply.add_workers();
  worker->set_rank(2);
  worker->set_hostname("node3");
  worker->set_pid(4711);
  EXPECT_EQ(DismissText(v1::DISMISS_ACTION_DRAIN, reply),
            "rank 2 (host node3, pid 4711) of job train is asked to leave at its next commit, "
            "within 30 s\n");
  worker = reply.add_workers();
  worker->set_rank(-1);
  worker->set_worker_id("w7");
  worker->set_hostname("node3");
  worker->set_pid(5);
  EXPECT_EQ(DismissText(v1::DISMISS_ACTION_EVICT, reply),
            "rank 2 (host node3, pid 4711) of job train is evicted\n"
            "worker w7 (host node3, pid 5) of job train is evicted\n");
}

}  // namespace
}  // namespace coordd
