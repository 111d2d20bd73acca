#include "client/coordctl/exit_report.h"

#include "common/protocol/protocol_bounds.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::ElementsAre;

ExitArguments Arguments() {
  ExitArguments arguments;
  arguments.job = "train";
  arguments.launch = "3.1";
  return arguments;
}

TEST(ExitRequest, SaysHowAProcessHasEnded) {
  ExitArguments arguments = Arguments();
  arguments.signal = 9;
  arguments.reason = "out of memory";
  arguments.last_words = {"loading", "step 4"};
  arguments.hostname = "node3";
  arguments.pid = 4711;
  arguments.rank = 3;
  const auto request = ExitRequestFrom(arguments);
  ASSERT_THAT(request, IsOk());
  EXPECT_EQ(request->job(), "train");
  ASSERT_EQ(request->exits_size(), 1);
  const v1::LaunchedExit& exit = request->exits(0);
  EXPECT_EQ(exit.launch(), "3.1");
  EXPECT_EQ(exit.exit().signal(), 9);
  EXPECT_EQ(exit.exit().code(), 0);
  EXPECT_FALSE(exit.exit().unreachable());
  EXPECT_EQ(exit.exit().reason(), "out of memory");
  EXPECT_THAT(exit.exit().last_words(), ElementsAre("loading", "step 4"));
  EXPECT_EQ(exit.hostname(), "node3");
  EXPECT_EQ(exit.pid(), 4711);
  EXPECT_EQ(exit.rank(), 3);
}

TEST(ExitRequest, HasOneEndAndNoOther) {
  EXPECT_THAT(ExitRequestFrom(Arguments()),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("--unseen")));
  ExitArguments both = Arguments();
  both.status = 0;
  both.unseen = true;
  EXPECT_THAT(ExitRequestFrom(both),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("--unseen")));
  both.status.reset();
  const auto unseen = ExitRequestFrom(both);
  ASSERT_THAT(unseen, IsOk());
  EXPECT_TRUE(unseen->exits(0).exit().unreachable());
}

TEST(ExitRequest, FitsWhatCoorddTakes) {
  ExitArguments arguments = Arguments();
  arguments.status = 3;
  arguments.reason = std::string(1000, 'r');
  for (int i = 0; i < 20; ++i) arguments.last_words.push_back(std::to_string(i));
  arguments.last_words.push_back(std::string(1000, 'w') + "\xff");
  const auto request = ExitRequestFrom(arguments);
  ASSERT_THAT(request, IsOk());
  const v1::ProcessExit& exit = request->exits(0).exit();
  EXPECT_EQ(exit.code(), 3);
  EXPECT_EQ(exit.reason().size(), size_t{kMaxLastWordBytes});
  ASSERT_EQ(exit.last_words_size(), 5);
  EXPECT_EQ(exit.last_words(0), "16");
  EXPECT_EQ(exit.last_words(4), std::string(kMaxLastWordBytes, 'w'));
}

}  // namespace
}  // namespace coordd
