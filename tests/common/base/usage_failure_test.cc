// How our programs answer arguments that they cannot take.
#include "common/base/usage_failure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace coordd {
namespace {

struct Program {
  CLI::App app{"", "prog"};
  std::string listen;
  int np = 0;
  double factor = 0;
  Program() {
    app.add_option("-l,--listen", listen);
    app.add_option("-n,--np", np);
    app.add_option("--factor", factor);
    app.failure_message(UsageFailure);
  }
  std::string Sentence(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());
    try {
      app.parse(arguments);
    } catch (const CLI::ParseError& error) {
      return UsageSentence(app, error);
    }
    return "";
  }
};

TEST(UsageSentence, NamesTheFlagThatThereIsNotAndTheNearest) {
  EXPECT_EQ(Program().Sentence({"--lisen", "127.0.0.1:1"}),
            "there is no flag --lisen, did you mean --listen?");
  EXPECT_EQ(Program().Sentence({"--lisen=127.0.0.1:1"}),
            "there is no flag --lisen, did you mean --listen?");
  EXPECT_EQ(Program().Sentence({"--verbose"}), "there is no flag --verbose");
}

TEST(UsageSentence, NamesTheWordThatNobodyAskedFor) {
  EXPECT_EQ(Program().Sentence({"start"}), "unexpected argument start");
}

TEST(UsageSentence, SaysWhatANumberIs) {
  EXPECT_EQ(Program().Sentence({"--np", "x"}), "--np: 'x', expected a whole number");
  EXPECT_EQ(Program().Sentence({"--factor", "much"}), "--factor: 'much', expected a number");
}

struct WithCommands : Program {
  std::string job;
  WithCommands() {
    app.require_subcommand(1);
    app.add_subcommand("status")->add_option("--job", job);
    app.add_subcommand("events");
  }
};

TEST(UsageSentence, NamesCommands) {
  EXPECT_EQ(WithCommands().Sentence({}), "expected a command: status, events");
  EXPECT_EQ(WithCommands().Sentence({"statu"}),
            "'statu' is neither an option nor a command of it, did you mean status? There are "
            "status, events");
  EXPECT_EQ(WithCommands().Sentence({"frobnicate"}),
            "'frobnicate' is neither an option nor a command of it, expected status, events");
}

TEST(UsageSentence, KnowsTheFlagsOfTheCommand) {
  EXPECT_EQ(WithCommands().Sentence({"status", "--jop", "a"}),
            "there is no flag --jop, did you mean --job?");
}

TEST(UsageFailure, NamesTheProgramAndItsHelp) {
  Program program;
  try {
    program.app.parse("--verbose");
    FAIL();
  } catch (const CLI::ParseError& error) {
    EXPECT_EQ(UsageFailure(&program.app, error),
              "prog: there is no flag --verbose\n(prog --help says more)\n");
  }
}

}  // namespace
}  // namespace coordd
