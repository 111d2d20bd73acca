#include "client/coordrun/plan/run_flags.h"

#include "absl/strings/str_cat.h"
#include "client/coordrun/crews/mpirun_crew.h"
#include "client/coordrun/plan/commands.h"
#include "client/coordrun/plan/horovodrun_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using ::testing::Pair;

RunOptions Parsed(const std::vector<std::string>& arguments) {
  const RunFlags flags = ParseRunFlags(arguments);
  EXPECT_FALSE(flags.exit);
  return flags.options;
}

TEST(RunFlags, TheCommandBeginsAtTheFirstWordThatIsNoOption) {
  const RunOptions options =
      Parsed({"-np", "4", "-H", "h1:4", "python", "train.py", "-np", "8", "--mpi"});
  EXPECT_EQ(options.np, 4);
  EXPECT_EQ(options.hosts, "h1:4");
  EXPECT_THAT(options.command, ElementsAre("python", "train.py", "-np", "8", "--mpi"));
}

TEST(RunFlags, TwoDashesEndTheOptionsAtTheLatest) {
  EXPECT_THAT(Parsed({"-n2", "--", "--odd", "x"}).command, ElementsAre("--odd", "x"));
  EXPECT_THAT(Parsed({"-np", "2", "prog", "--", "x"}).command, ElementsAre("prog", "--", "x"));
}

TEST(RunFlags, UnderstandsHorovodrun) {
  const RunOptions options = Parsed({"--num-proc",
                                     "8",
                                     "--hosts",
                                     "a:4,b:4",
                                     "-p",
                                     "2222",
                                     "-i",
                                     "key",
                                     "--output-filename",
                                     "out",
                                     "--start-timeout=7",
                                     "--verbose",
                                     "--disable-cache",
                                     "--gloo",
                                     "--cycle-time-ms",
                                     "3",
                                     "--stall-check-shutdown-time-seconds",
                                     "90",
                                     "--network-interface",
                                     "eth0",
                                     "python",
                                     "x.py"});
  EXPECT_EQ(options.np, 8);
  EXPECT_EQ(options.hosts, "a:4,b:4");
  EXPECT_EQ(options.ssh_port, 2222);
  EXPECT_EQ(options.ssh_identity, "key");
  EXPECT_EQ(options.output_directory, "out");
  EXPECT_TRUE(options.output_as_horovod);
  EXPECT_EQ(options.start_timeout, absl::Seconds(7));
  EXPECT_EQ(options.networks, "eth0");
  EXPECT_THAT(options.coordd_arguments, ElementsAre("--stall-abort=90"));
  EXPECT_THAT(options.command, ElementsAre("python", "x.py"));
}

TEST(RunFlags, ATimelineIsAVariableOfTheWorkers) {
  const RunFlags flags = ParseRunFlags(
      {"-np", "2", "--timeline-filename", "t.json", "--timeline-mark-cycles", "python", "x.py"});
  EXPECT_THAT(flags.options.command, ElementsAre("python", "x.py"));
  const auto translated =
      TranslateHorovodrun({"--timeline-filename=t.json", "--timeline-mark-cycles"});
  ASSERT_TRUE(translated.ok());
  EXPECT_THAT(*translated,
              ElementsAre("-xCOORDD_TIMELINE=t.json", "-xCOORDD_TIMELINE_MARK_CYCLES=1"));
}

TEST(RunFlags, CheckingResultsIsAVariableOfTheWorkers) {
  const RunFlags flags = ParseRunFlags({"-np", "2", "--check-results", "1e-6", "./train"});
  EXPECT_THAT(flags.options.variables,
              ElementsAre(Pair("COORDD_CHECK_RESULTS", Optional(std::string("1e-06")))));
  EXPECT_FALSE(flags.options.check_only);
  EXPECT_EQ(ParseRunFlags({"-np", "2", "--check-results", "1", "./train"}).exit, kExitUsage);
}

TEST(RunFlags, ANumberThatIsTooSmallIsAnsweredInAShortSentence) {
  for (const char* flag : {"--min-np", "--max-np", "--slots-per-host", "--reset-limit"}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(ParseRunFlags({flag, "0", "./train"}).exit, kExitUsage);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              absl::StrCat("coordrun: ", flag, ": '0', expected a number above 0\n",
                           "(coordrun --help says more)\n"));
  }
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"--size", "-3", "./train"}, {"--first-rank", "-1", "./train"}}) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(ParseRunFlags(command).exit, kExitUsage);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::StartsWith(
                    absl::StrCat("coordrun: ", command[0], ": '", command[1], "', expected a ")));
  }
  testing::internal::CaptureStderr();
  EXPECT_EQ(ParseRunFlags({"--start-timeout", "nan", "./train"}).exit, kExitUsage);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "coordrun: --start-timeout: 'nan', expected a number of seconds, 0 or more\n"
            "(coordrun --help says more)\n");
}

TEST(RunFlags, WhatIsWantedOfGpusIsAVariableOfTheWorkers) {
  EXPECT_THAT(ParseRunFlags({"-np", "2", "--require-rdma", "./train"}).options.variables,
              ElementsAre(Pair("COORDD_REQUIRE_RDMA", Optional(std::string("1")))));
  EXPECT_THAT(ParseRunFlags({"-np", "2", "--no-gpu-registration", "./train"}).options.variables,
              ElementsAre(Pair("COORDD_GPU_REGISTER", Optional(std::string("0")))));
  EXPECT_THAT(
      ParseRunFlags({"-np", "2", "--gpu-algorithm", "hierarchical", "./train"}).options.variables,
      ElementsAre(Pair("COORDD_GPU_ALGORITHM", Optional(std::string("hierarchical")))));
  EXPECT_EQ(ParseRunFlags({"-np", "2", "--gpu-algorithm", "ring", "./train"}).exit, kExitUsage);
  EXPECT_TRUE(ParseRunFlags({"-np", "2", "./train"}).options.variables.empty());
}

TEST(RunFlags, AnswersWhatHasNoCounterpart) {
  for (const char* flag : {"--autotune", "--config-file", "--jsrun", "-cb", "--mpi-args"}) {
    const auto translated = TranslateHorovodrun({flag, "value"});
    ASSERT_FALSE(translated.ok()) << flag;
    EXPECT_THAT(std::string(translated.status().message()), HasSubstr(std::string(flag) + ": "));
  }
  EXPECT_EQ(ParseRunFlags({"--jsrun", "true"}).exit, kExitUsage);
}

TEST(RunFlags, AnswersFlagsOfOtherLaunchers) {
  const std::pair<std::vector<std::string>, const char*> lines[] = {
      {{"-bind-to", "none"}, "--launcher mpirun"},
      {{"--map-by", "slot"}, "--launcher mpirun"},
      {{"-mca", "pml", "ob1"}, "--launcher mpirun"},
      {{"-r1", "-g6", "-a6", "-c42", "-bpacked:7"}, "jsrun -n 2"},
      {{"-bpacked:7"}, "jsrun -n 2"},
      {{"-r", "1"}, "jsrun -n 2"},
      {{"-g", "6"}, "jsrun -n 2"},
      {{"-a", "6"}, "jsrun -n 2"},
      {{"-c", "42"}, "jsrun -n 2"},
      {{"--mpiarg", "-pami_noib"}, "leave it out"},
      {{"--rankfile", "ranks"}, "-H h1:6,h2:6"},
      {{"-tcp"}, "UCX_TLS"},
      {{"-cb"}, "coordctl check-build"}};
  for (const auto& [line, hint] : lines) {
    std::vector<std::string> whole = {"-np", "2"};
    whole.insert(whole.end(), line.begin(), line.end());
    whole.push_back("./train");
    const RunFlags flags = ParseRunFlags(whole);
    EXPECT_EQ(flags.exit, kExitUsage) << line[0];
    const auto translated = TranslateHorovodrun(line);
    ASSERT_FALSE(translated.ok()) << line[0];
    EXPECT_THAT(std::string(translated.status().message()), HasSubstr(hint)) << line[0];
  }
  // Ours that begin alike.
  EXPECT_EQ(ParseRunFlags({"-n4", "./train"}).options.np, 4);
}

TEST(RunFlags, IgnoresWhatIsMeasuredWithOneLine) {
  const RunFlags flags =
      ParseRunFlags({"-np", "2", "--fusion-threshold-mb", "64", "--cycle-time-ms=3",
                     "--hierarchical-allreduce", "python", "x.py"});
  EXPECT_FALSE(flags.exit);
  EXPECT_THAT(flags.options.command, ElementsAre("python", "x.py"));
  EXPECT_THAT(flags.options.notes,
              ElementsAre("--fusion-threshold-mb, --cycle-time-ms, --hierarchical-allreduce are "
                          "ignored: how tensors are packed and reduced is measured here, not set"));
  EXPECT_TRUE(ParseRunFlags({"-np", "2", "./train"}).options.notes.empty());
}

TEST(RunFlags, TakesInterfacesOneByOne) {
  const RunFlags flags = ParseRunFlags(
      {"-np", "2", "--network-interface", "eth0", "--network-interface", "ib0", "python", "x.py"});
  EXPECT_FALSE(flags.exit);
  EXPECT_EQ(flags.options.networks, "eth0,ib0");
  EXPECT_EQ(ParseRunFlags({"--network-interfaces", "eth0,ib0", "./x"}).options.networks,
            "eth0,ib0");
}

TEST(RunFlags, TorchsVariablesCanBeLeftOut) {
  EXPECT_TRUE(ParseRunFlags({"-np", "2", "./train"}).options.torch_env);
  EXPECT_FALSE(ParseRunFlags({"-np", "2", "--no-torch-env", "./train"}).options.torch_env);
}

TEST(RunFlags, AnElasticRunHasAMinimum) {
  const RunFlags flags = ParseRunFlags({"-np", "4", "--min-np", "2", "./train"});
  EXPECT_EQ(flags.options.min_np, 2);
  EXPECT_EQ(flags.options.np, 4);
  EXPECT_EQ(ParseRunFlags({"--min-num-proc", "3", "./train"}).options.min_np, 3);
  EXPECT_EQ(ParseRunFlags({"-np", "4", "--min-np", "0", "./train"}).exit, kExitUsage);
  EXPECT_EQ(flags.options.on_failure, "raise");
  EXPECT_EQ(
      ParseRunFlags({"--min-np", "2", "--on-failure", "continue", "./train"}).options.on_failure,
      "continue");
  EXPECT_EQ(ParseRunFlags({"--min-np", "2", "--on-failure", "end", "./train"}).exit, kExitUsage);
  EXPECT_EQ(ParseRunFlags({"--elastic-timeout", "60", "./train"}).options.elastic_timeout,
            absl::Minutes(1));
}

TEST(RunFlags, TakesHorovodsFlagsForHostsThatComeAndGo) {
  const RunFlags flags =
      ParseRunFlags({"--min-num-proc", "2", "--max-num-proc", "4", "--host-discovery-script",
                     "./hosts.sh -v", "--slots", "2", "--reset-limit", "3",
                     "--blacklist-cooldown-range", "2", "100", "python", "train.py"});
  ASSERT_FALSE(flags.exit.has_value());
  const RunOptions& options = flags.options;
  EXPECT_EQ(options.min_np, 2);
  EXPECT_EQ(options.max_np, 4);
  EXPECT_EQ(options.discovery_script, "./hosts.sh -v");
  EXPECT_EQ(options.slots_per_host, 2);
  EXPECT_EQ(options.reset_limit, 3);
  EXPECT_EQ(options.cooldown_min, absl::Seconds(2));
  EXPECT_EQ(options.cooldown_max, absl::Seconds(100));
  EXPECT_THAT(options.command, ElementsAre("python", "train.py"));
}

void ExpectRefused(const std::vector<std::string>& arguments, const std::string& says) {
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(ParseRunFlags(arguments).exit, Optional(2));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(says));
}

TEST(RunFlags, RefusesAJobThatCoorddDoesNotTake) {
  ExpectRefused({"--job", "a b", "true"}, "--job is 'a b': expected 1 to 128 letters, digits");
  ExpectRefused({"--job", "a\nb\x1b[2J", "true"}, "--job is 'a\\x0ab\\x1b[2J': expected");
  ExpectRefused({"--job", std::string(129, 'a'), "true"}, "expected 1 to 128 letters");
  EXPECT_EQ(Parsed({"--job", "a.B-1_", "true"}).job, "a.B-1_");
}

TEST(RunFlags, AStatusPageBeyondLoopbackNeedsTlsOrAWord) {
  ExpectRefused({"--http", "0.0.0.0:7", "--no-tls", "true"},
                "expected no --no-tls, or 127.0.0.1:7, or --insecure-http");
  EXPECT_TRUE(Parsed({"--http", "0.0.0.0:0", "true"}).HttpHasTls());
  EXPECT_FALSE(Parsed({"--http", "127.0.0.1:0", "true"}).HttpHasTls());
  EXPECT_FALSE(Parsed({"--http", "0.0.0.0:0", "--insecure-http", "true"}).HttpHasTls());
  EXPECT_TRUE(Parsed({"--http", "0.0.0.0:0", "--insecure-http", "true"}).insecure_http);
  Parsed({"--http", "0.0.0.0:0", "--coordd-arg=--insecure-http", "true"});
  Parsed({"--http", "off", "true"});
}

TEST(RunFlags, WhatCoordrunDecidesOfItsCoorddIsNotForCoorddArg) {
  ExpectRefused({"--coordd-arg=--listen=0.0.0.0:1", "true"}, "expected coordrun's own --listen");
  ExpectRefused({"--coordd-arg=--ready-fd=3", "true"}, "--ready-fd");
  Parsed({"--coordd-arg=--log-level=info", "true"});
}

TEST(RunFlags, AVariablesNameHasNoSpaces) {
  ExpectRefused({"-x", "A B=3", "true"}, "-x A B=3: expected NAME or NAME=VALUE");
  ExpectRefused({"-x", "=3", "true"}, "-x =3: expected NAME or NAME=VALUE");
  EXPECT_THAT(Parsed({"-x", "A=b c", "true"}).variables, ElementsAre(Pair("A", "b c")));
}

TEST(RunFlags, AMaximumWithoutAScriptIsTold) {
  const RunOptions options =
      Parsed({"-np", "2", "--min-np", "2", "--max-np", "4", "-H", "localhost:4", "true"});
  EXPECT_THAT(options.notes, ElementsAre("no --host-discovery-script: --max-np 4 has no effect; "
                                         "-np 4 --min-np 2 starts 4"));
  EXPECT_THAT(Parsed({"-np", "2", "--min-np", "1", "--max-np", "2", "true"}).notes,
              ::testing::IsEmpty());
}

TEST(RunFlags, RefusesWhatContradictsAScript) {
  const std::vector<std::string> script = {"--host-discovery-script", "./hosts.sh"};
  for (const std::vector<std::string>& more : {std::vector<std::string>{"-H", "a:1"},
                                               {"--launcher", "srun"},
                                               {"--min-np", "3", "--max-np", "2"},
                                               {"--blacklist-cooldown-range", "5", "1"}}) {
    std::vector<std::string> arguments = script;
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back("true");
    EXPECT_EQ(ParseRunFlags(arguments).exit, kExitUsage) << more[0];
  }
}

TEST(Commands, SshAsksNoQuestionsAndCarriesNoSecret) {
  RunOptions options;
  options.ssh_port = 2222;
  options.ssh_identity = "key file";
  options.launcher_arguments = {"-oProxyJump=gate"};
  const auto command = CommandToHost(options, {.host = "h1", .user = "me"}, "/opt/it's/coordrun");
  EXPECT_THAT(command, AllOf(Contains("BatchMode=yes"), Contains("2222"), Contains("key file"),
                             Contains("-oProxyJump=gate"), Contains("me@h1")));
  EXPECT_EQ(command[command.size() - 3], "--") << "the host is no option, whatever its name";
  EXPECT_THAT(command.back(), HasSubstr("--agent; exec coordrun --agent"));
}

TEST(Commands, BlaunchStartsTheAgentOfTheHost) {
  RunOptions options;
  options.launcher = "blaunch";
  options.launcher_arguments = {"-u"};
  const auto command = CommandToHost(options, {.host = "h1"}, "/opt/coordrun");
  ASSERT_EQ(command.size(), 6U);
  EXPECT_THAT(std::vector<std::string>(command.begin(), command.begin() + 5),
              ElementsAre("blaunch", "-u", "h1", "sh", "-c"));
  EXPECT_THAT(command.back(), HasSubstr("exec /opt/coordrun --agent"));
  const ProcessEnd end{.code = 255, .signal = 0};
  EXPECT_THAT(ExplainToHost(options, "h1", end, {"Permission denied"}),
              HasSubstr("host h1: blaunch"));
}

TEST(Commands, AFailedSshIsOneSentenceThatNamesTheHost) {
  const ProcessEnd end{.code = 255, .signal = 0};
  const auto explain = [&](const std::string& said) {
    return ExplainToHost(RunOptions(), "node7", end, {"banner", said});
  };
  for (const auto& [said, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"Host key verification failed.", "its key is not known here"},
           {"me@node7: Permission denied (publickey).", "refuses the login"},
           {"ssh: Could not resolve hostname node7: Name or service not known",
            "name is not known"},
           {"ssh: connect to host node7 port 22: Connection refused", "no ssh server"},
           {"sh: 1: exec: coordrun: not found", "coordrun is not there"},
           {"something new", "something new"}}) {
    EXPECT_THAT(explain(said), AllOf(HasSubstr("host node7: "), HasSubstr(sentence)));
  }
}

TEST(Commands, MpirunIsToldNamesOnly) {
  RunOptions options;
  options.command = {"train"};
  RunPlan plan;
  plan.np = 4;
  plan.hosts = {{.host = "h1", .count = 2}, {.host = "h2", .count = 2}};
  EXPECT_EQ(
      Quoted(MpirunCommand(options, plan, MpiLibrary::kOpenMpi, {"COORDD_ADDR"}, options.command)),
      "mpirun -np 4 -H h1:2,h2:2 --tag-output -x COORDD_ADDR train");
  EXPECT_EQ(Quoted(MpirunCommand(options, plan, MpiLibraryFrom("HYDRA build details:"), {"A", "B"},
                                 options.command)),
            "mpirun -n 4 -hosts h1:2,h2:2 -prepend-rank -genvlist A,B train");
  EXPECT_EQ(MpiLibraryFrom("mpirun (Open MPI) 4.1.4"), MpiLibrary::kOpenMpi);
}

TEST(ParseLabel, TakesTheLabelsOfBothLibraries) {
  const auto open = ParseLabel("[1,12]<stderr>:text [x]");
  ASSERT_TRUE(open);
  EXPECT_EQ(open->rank, 12);
  EXPECT_EQ(open->stream, Stream::kErr);
  EXPECT_EQ(open->text, "text [x]");
  const auto hydra = ParseLabel("[3] hello");
  ASSERT_TRUE(hydra);
  EXPECT_EQ(hydra->rank, 3);
  EXPECT_FALSE(hydra->stream);
  EXPECT_EQ(hydra->text, "hello");
  for (const char* line : {"", "plain", "[x] y", "[1,2] y", "[3]y", "[", "[-1] y"}) {
    EXPECT_FALSE(ParseLabel(line)) << line;
  }
}

// "1e:text", each.
std::vector<std::string> PiecesOf(absl::string_view line) {
  std::vector<std::string> pieces;
  for (const LabelledLine& piece : ParseLabels(line, /*world_size=*/3)) {
    const char* stream = !piece.stream ? "?" : *piece.stream == Stream::kErr ? "e" : "o";
    pieces.push_back(absl::StrCat(piece.rank, stream, ":", piece.text));
  }
  return pieces;
}

TEST(ParseLabels, FindsThoseInsideOfALineThatWasWrittenInPieces) {
  EXPECT_THAT(PiecesOf("[1,1]<stdout>:a [1,0]<stdout>:b [1,1]<stderr>:c"),
              ElementsAre("1o:a ", "0o:b ", "1e:c"));
  EXPECT_THAT(PiecesOf("[1,0]<stdout>:[1,0]<stdout>:"), ElementsAre("0o:", "0o:"));
  EXPECT_THAT(PiecesOf("[1,0]<stdout>:one"), ElementsAre("0o:one"));
}

TEST(ParseLabels, TakesForTextWhatIsNoLabelOfThisRun) {
  for (const char* text : {"[1,2,3]", "x[1,0]y", "[1,3]<stdout>:z", "[2,0]<stdout>:z", "[1,"})
    EXPECT_THAT(PiecesOf(absl::StrCat("[1,0]<stdout>:", text)),
                ElementsAre(absl::StrCat("0o:", text)));
  EXPECT_THAT(PiecesOf("[2] a [1] b"), ElementsAre("2?:a [1] b"));
  EXPECT_THAT(PiecesOf("[1,3]<stdout>:of another"), ElementsAre());
  EXPECT_THAT(PiecesOf("plain"), ElementsAre());
}

}  // namespace
}  // namespace coordd
