#include "client/coordrun/wire/agent_messages.h"

#include <signal.h>

#include "absl/strings/str_split.h"
#include "client/coordrun/wire/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Optional;
using ::testing::SizeIs;

std::vector<std::string> LinesOf(const Frame& frame) {
  std::vector<std::string> lines = absl::StrSplit(EncodeFrame(frame), '\n');
  EXPECT_EQ(lines.back(), "") << "each line ends";
  lines.pop_back();
  return lines;
}

TEST(Frame, KeepsAnyByteOfALine) {
  const Frame frame{FrameKind::kOut, 3, std::string("a\0\xff\x1e b", 6)};
  const auto lines = LinesOf(frame);
  ASSERT_THAT(lines, SizeIs(1));
  FrameReader reader;
  EXPECT_THAT(reader.Feed(lines[0]), Optional(frame));
}

TEST(Frame, CutsWhatIsLongerThanSrunTakesAtOnce) {
  const Frame frame{FrameKind::kErr, 12345, std::string(5000, 'x')};
  FrameReader reader;
  std::optional<Frame> read;
  for (const std::string& line : LinesOf(frame)) {
    EXPECT_THAT(line.size() + 1, Le(kMaxFrameLineBytes));
    EXPECT_FALSE(read) << "whole before its last line";
    read = reader.Feed(line);
  }
  EXPECT_THAT(read, Optional(frame));
}

TEST(Frame, PartsOfSeveralSourcesMayComeMixed) {
  const Frame a{FrameKind::kOut, 0, std::string(1500, 'a')},
      b{FrameKind::kOut, 1, std::string(1500, 'b')};
  const auto of_a = LinesOf(a), of_b = LinesOf(b);
  FrameReader reader;
  EXPECT_FALSE(reader.Feed(of_a[0]));
  EXPECT_FALSE(reader.Feed(of_b[0]));
  EXPECT_THAT(reader.Feed(of_a[1]), Optional(a));
  EXPECT_THAT(reader.Feed(of_b[1]), Optional(b));
}

TEST(Frame, AnythingElseIsNone) {
  FrameReader reader;
  for (const char* line :
       {"", "Welcome to node1", "\x1e", "\x1eo", "\x1eo.", "\x1eq.1 x", "\x1eo.x y", "\x1eo.1"}) {
    EXPECT_FALSE(reader.Feed(line)) << line;
  }
  EXPECT_FALSE(FrameReader::is_frame("Welcome to node1"));
}

TEST(AgentMessages, OrdersArriveAsTheyWere) {
  AgentOrders orders;
  orders.identity = AgentIdentity::kSlurm;
  orders.number = 4;
  orders.command = {"train", "--name", "a b\n\xc3\xa4\xff"};
  orders.directory = "/data";
  orders.environment = {{"A", "\xfe="}, {"B", ""}};
  orders.unset = {"COORDD_TLS_CA"};
  orders.files = {{"COORDD_TOKEN_FILE", "token", "secret\n"}};
  orders.workers = {{7, {{"COORDD_RANK", "7"}}}};
  orders.coordinators = {"10.0.0.1:5"};
  orders.look = false;
  orders.stay = true;
  const std::string line = OrdersLine(orders);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto read = ParseOrders(line);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->identity, AgentIdentity::kSlurm);
  EXPECT_EQ(read->number, 4);
  EXPECT_EQ(read->command, orders.command);
  EXPECT_EQ(read->directory, "/data");
  EXPECT_EQ(read->environment, orders.environment);
  EXPECT_EQ(read->unset, orders.unset);
  ASSERT_THAT(read->files, SizeIs(1));
  EXPECT_EQ(read->files[0].contents, "secret\n");
  ASSERT_THAT(read->workers, SizeIs(1));
  EXPECT_EQ(read->workers[0].index, 7);
  EXPECT_EQ(read->workers[0].environment.at("COORDD_RANK"), "7");
  EXPECT_EQ(read->coordinators, orders.coordinators);
  EXPECT_FALSE(read->look);
  EXPECT_TRUE(read->stay);
}

TEST(AgentMessages, TheEndOfAWorkerArrives) {
  const auto read =
      ParseMessage(MessageLine(WorkerEndedMessage{3, {.code = 0, .signal = SIGSEGV}}));
  ASSERT_TRUE(read.ok());
  const auto* ended = std::get_if<WorkerEndedMessage>(&*read);
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->worker, 3);
  EXPECT_EQ(ended->end.signal, SIGSEGV);
}

TEST(AgentMessages, AReportOfAnotherRevisionTellsItsVersion) {
  AgentReport report;
  report.protocol = 99;
  report.version = "9.9";
  const auto read = ParseMessage(MessageLine(report));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::get<AgentReport>(*read).version, "9.9");
}

TEST(AgentMessages, NonsenseIsRefusedInOneSentence) {
  for (const char* text : {"", "{}", "[]", "{\"protocol\":4}", "{\"protocol\":\"x\"}"}) {
    EXPECT_THAT(ParseOrders(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected")))
        << text;
  }
  EXPECT_THAT(ParseOrders("{\"protocol\":1}"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("revision 1")));
  EXPECT_FALSE(ParseMessage("{\"type\":\"ended\"}").ok());
}

TEST(AgentMessages, SignalsAreNumbers) {
  int32_t worker = 0;
  EXPECT_EQ(ParseSignalOrder(SignalOrder(SIGTERM), &worker), SIGTERM);
  EXPECT_EQ(worker, -1);
  EXPECT_EQ(ParseSignalOrder(SignalOneOrder(3, SIGKILL), &worker), SIGKILL);
  EXPECT_EQ(worker, 3);
  for (const char* text : {"signal", "signal x", "signal 0", "signal 99", "signal 9 x", "start"}) {
    EXPECT_EQ(ParseSignalOrder(text, &worker), 0) << text;
  }
}

TEST(AgentMessages, AWorkerIsStartedAgainByItsNumber) {
  EXPECT_EQ(ParseRestartOrder(RestartOrder(12)), 12);
  for (const char* text : {"restart", "restart x", "restart -1", "start"}) {
    EXPECT_EQ(ParseRestartOrder(text), -1) << text;
  }
  const auto read = ParseMessage(MessageLine(CannotRunMessage{127, "train is gone", 12}));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::get<CannotRunMessage>(*read).worker, 12);
}

}  // namespace
}  // namespace coordd
