#include "client/coordrun/plan/program_name.h"

#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace coordd {
namespace {

std::string NameOf(const std::string& command) {
  return ProgramName(absl::StrSplit(command, ' ', absl::SkipEmpty()));
}

TEST(ProgramName, IsTheScriptsOrTheProgramsOwn) {
  EXPECT_EQ(NameOf("./bin/train --epochs 3"), "train");
  EXPECT_EQ(NameOf("./train.py"), "train");
  EXPECT_EQ(NameOf("python3 -u train.py"), "train");
  EXPECT_EQ(NameOf("/usr/bin/python3.11 -W ignore -X dev src/train.py --model bash"), "train");
  EXPECT_EQ(NameOf("python -m pkg.mod --x"), "pkg.mod");
  EXPECT_EQ(NameOf("bash x.sh"), "x");
  EXPECT_EQ(NameOf("bash -eu -o pipefail x.sh 3"), "x");
  EXPECT_EQ(NameOf("train.v2"), "train.v2");
}

TEST(ProgramName, LooksBehindWhatStartsOtherPrograms) {
  EXPECT_EQ(NameOf("env A=B -u C python train.py"), "train");
  EXPECT_EQ(NameOf("torchrun --nproc-per-node 4 train.py"), "train");
  EXPECT_EQ(NameOf("torchrun --standalone -m pkg.mod"), "pkg.mod");
  EXPECT_EQ(NameOf("python -m torch.distributed.run --nnodes 2 train.py"), "train");
  EXPECT_EQ(NameOf("accelerate launch --num_processes 4 x.py"), "x");
  EXPECT_EQ(NameOf("python -m coordd.horovod train.py"), "train");
  EXPECT_EQ(NameOf("python -m coordd.torch.distributed train.py"), "train");
  EXPECT_EQ(NameOf("python -m coordd.horovod -m pkg.mod"), "pkg.mod");
  EXPECT_EQ(NameOf("numactl -N 0 nice -n 5 python train.py"), "train");
  EXPECT_EQ(NameOf("singularity exec --nv -B /data image.sif python train.py"), "train");
  EXPECT_EQ(NameOf("ch-run -b /data ./image -- python train.py"), "train");
  EXPECT_EQ(NameOf("nsys profile -o out --stats true python train.py"), "train");
}

TEST(ProgramName, IsThatOfTheInterpreterWhereThereIsNoScript) {
  EXPECT_EQ(ProgramName({"python3", "-c", "print(1)"}), "python3");
  EXPECT_EQ(ProgramName({"bash", "-c", "exec python train.py"}), "bash");
  EXPECT_EQ(ProgramName({"/usr/bin/python3", "-u", "-", "a", "b"}), "python3");
  EXPECT_EQ(NameOf("python"), "python");
  EXPECT_EQ(NameOf("env"), "env");
  EXPECT_EQ(NameOf("torchrun --nproc-per-node 4"), "torchrun");
  EXPECT_EQ(NameOf("accelerate config"), "accelerate");
  EXPECT_EQ(NameOf(".py"), ".py");
  EXPECT_EQ(ProgramName({}), "");
}

}  // namespace
}  // namespace coordd
