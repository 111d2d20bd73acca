// How our programs answer arguments that they cannot take.
#include "common/base/usage_failure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/utf8.h"

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

TEST(UsageSentence, KnowsWhatOtherProgramsCallIt) {
  EXPECT_EQ(Program().Sentence({"--addr", "127.0.0.1:1"}),
            "there is no flag --addr, did you mean --listen?");
  EXPECT_EQ(Program().Sentence({"--nproc=4"}), "there is no flag --nproc, did you mean --np?");
  struct Client : Program {
    std::string coordinator;
    Client() { app.add_option("--coordinator", coordinator); }
  };
  EXPECT_EQ(Client().Sentence({"--addr", "127.0.0.1:1"}),
            "there is no flag --addr, did you mean --coordinator?");
  EXPECT_EQ(Client().Sentence({"--cert", "x"}), "there is no flag --cert") << "it has none";
}

TEST(UsageSentence, KnowsItAlsoWhereItIsMistyped) {
  EXPECT_EQ(Program().Sentence({"--adr=127.0.0.1:1"}),
            "there is no flag --adr, did you mean --listen?");
  EXPECT_EQ(Program().Sentence({"--num_processes=4"}),
            "there is no flag --num_processes, did you mean --np?");
  struct Launcher : Program {
    int first = 0, size = 0;
    Launcher() {
      app.add_option("--first-rank", first);
      app.add_option("--size", size);
    }
  };
  EXPECT_EQ(Launcher().Sentence({"--rank", "0"}),
            "there is no flag --rank, did you mean --first-rank?");
  EXPECT_EQ(Launcher().Sentence({"--world_size=2"}),
            "there is no flag --world_size, did you mean --size?");
}

TEST(UsageSentence, NamesTheWordThatNobodyAskedFor) {
  EXPECT_EQ(Program().Sentence({"start"}), "unexpected argument start");
}

TEST(UsageSentence, SaysWhatANumberIs) {
  EXPECT_EQ(Program().Sentence({"--np", "x"}), "--np: 'x', expected a whole number");
  EXPECT_EQ(Program().Sentence({"--factor", "much"}), "--factor: 'much', expected a number");
}

TEST(UsageSentence, SaysWhichNumbersAreTaken) {
  struct Numbers : Program {
    int days = 0;
    Numbers() {
      app.add_option("--days", days)->check(NumberFrom(1, 36500, "days"));
      app.add_option("--grace", factor)->check(NumberFrom(0.001, 604800.0, "seconds"));
    }
  };
  for (const char* wrong : {"x", "3d", "0", "-1", "1.5", "99999999999999999999"}) {
    EXPECT_EQ(
        Numbers().Sentence({std::string("--days=") + wrong}),
        std::string("--days: '") + wrong + "', expected a whole number of days from 1 to 36500");
  }
  for (const char* wrong : {"3s", "-1", "1e9", "nan", "inf"}) {
    EXPECT_EQ(
        Numbers().Sentence({"--grace", wrong}),
        std::string("--grace: '") + wrong + "', expected a number of seconds from 0.001 to 604800");
  }
  EXPECT_EQ(Numbers().Sentence({"--days", "36500", "--grace", "0.001"}), "");
  EXPECT_EQ(Program().Sentence({"--np", "99999999999"}),
            "--np: '99999999999', expected a whole number, nearer to 0");
  struct Named : Program {
    Named() { app.get_option("--np")->type_name("N")->check(ZeroOrMore()); }
  };
  EXPECT_EQ(Named().Sentence({"--np", "1.5"}), "--np: '1.5', expected a whole number");
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

TEST(UsageFailure, IsTwoLinesThatSteerNoTerminal) {
  for (const std::string steers : {"\n", "\r", "\x1b[2J", "\xc2\x9b", "\u202e", "\u2066", "\xff"}) {
    for (const std::string& wrong : {"--no" + steers + "flag", "--np=" + steers, "word" + steers}) {
      Program program;
      try {
        program.app.parse(std::vector<std::string>{wrong});
        FAIL();
      } catch (const CLI::ParseError& error) {
        const std::string text = UsageFailure(&program.app, error);
        EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
        EXPECT_EQ(PrintableText(text, "\n"), text);
      }
    }
  }
}

}  // namespace
}  // namespace coordd
