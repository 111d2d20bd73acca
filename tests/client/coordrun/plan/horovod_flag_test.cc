#include "client/coordrun/plan/horovod_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

std::string Rewritten(const std::string& command) {
  const auto result = UnderHorovod(absl::StrSplit(command, ' '));
  return result.ok() ? absl::StrJoin(*result, " ") : std::string(result.status().message());
}

TEST(HorovodFlag, PutsTheShimBeforeTheScript) {
  EXPECT_EQ(Rewritten("python train.py"), "python -m coordd.horovod train.py");
  EXPECT_EQ(Rewritten("/opt/venv/bin/python3.12 train.py -u"),
            "/opt/venv/bin/python3.12 -m coordd.horovod train.py -u");
}

TEST(HorovodFlag, LeavesTheInterpretersOwnOptionsBeforeIt) {
  EXPECT_EQ(Rewritten("python3 -u -W error -Xdev train.py -W x"),
            "python3 -u -W error -Xdev -m coordd.horovod train.py -W x");
}

TEST(HorovodFlag, KeepsModulesAndTexts) {
  EXPECT_EQ(Rewritten("python3 -m package.train --lr 1"),
            "python3 -m coordd.horovod -m package.train --lr 1");
  EXPECT_EQ(Rewritten("python3 -c pass"), "python3 -m coordd.horovod -c pass");
}

TEST(HorovodFlag, PutsTheBackendOfTorchThereInTheSameWay) {
  const auto result = UnderTorchBackend({"python3", "-u", "train.py", "--lr", "1"});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(absl::StrJoin(*result, " "), "python3 -u -m coordd.torch.distributed train.py --lr 1");
  EXPECT_THAT(UnderTorchBackend({"./train.sh"}).status().message(),
              HasSubstr("--torch-backend: found the command"));
  EXPECT_TRUE(ReadsProgramFromInput({"python3", "-m", "coordd.torch.distributed", "-"}));
}

TEST(HorovodFlag, RefusesWhatIsNotPythonOrHasNoScript) {
  EXPECT_THAT(Rewritten("./train.sh"), HasSubstr("expected one that begins with python"));
  EXPECT_THAT(Rewritten("pythonic train.py"), HasSubstr("expected one that begins with python"));
  EXPECT_THAT(Rewritten("python3 -u -W"), HasSubstr("without a script"));
  EXPECT_THAT(Rewritten("python3"), HasSubstr("without a script"));
}

}  // namespace
}  // namespace coordd
