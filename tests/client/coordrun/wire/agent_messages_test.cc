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

AgentOrders SomeOrders() {
  AgentOrders orders;
  orders.set_protocol(kAgentProtocol);
  orders.set_identity(v1::AGENT_IDENTITY_SLURM);
  orders.set_number(4);
  for (const char* word : {"train", "--name", "a b\n\xc3\xa4\xff"}) orders.add_command(word);
  orders.set_directory("/data");
  *orders.mutable_environment() = ToVariables({{"A", "\xfe="}, {"B", ""}});
  orders.add_unset("COORDD_TLS_CA");
  v1::OrderedFile& file = *orders.add_files();
  file.set_variable("COORDD_TOKEN_FILE");
  file.set_name("token");
  file.set_contents(std::string("secret\n\0\xff", 9));
  v1::OrderedWorker& worker = *orders.add_workers();
  worker.set_index(7);
  *worker.mutable_environment() = ToVariables({{"COORDD_RANK", "7"}});
  orders.add_coordinators("10.0.0.1:5");
  orders.set_stay(true);
  return orders;
}

TEST(AgentMessages, OrdersArriveAsTheyWere) {
  const AgentOrders orders = SomeOrders();
  const std::string line = Line(orders);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto read = ParseOrders(line);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), orders.SerializeAsString());
  EXPECT_EQ(FromVariables(read->environment()), (Environment{{"A", "\xfe="}, {"B", ""}}));
}

TEST(AgentMessages, AVariableIsSetOnce) {
  AgentOrders orders;
  SetVariable("A", "1", orders.mutable_environment());
  SetVariable("B", "2", orders.mutable_environment());
  SetVariable("A", "3", orders.mutable_environment());
  EXPECT_EQ(FromVariables(orders.environment()), (Environment{{"A", "3"}, {"B", "2"}}));
  EXPECT_EQ(orders.environment_size(), 2);
}

TEST(AgentMessages, TheEndOfAWorkerArrives) {
  AgentMessage message;
  message.mutable_ended()->set_worker(3);
  message.mutable_ended()->set_signal(SIGSEGV);
  const auto read = ParseMessage(Line(message));
  ASSERT_TRUE(read.ok());
  ASSERT_TRUE(read->has_ended());
  EXPECT_EQ(read->ended().worker(), 3);
  EXPECT_EQ(read->ended().signal(), SIGSEGV);
}

TEST(AgentMessages, AReportOfAnotherRevisionTellsItsVersion) {
  const auto read = ParseMessage(
      R"({"report": {"protocol": 99, "version": "9.9", "later": [1], "also": {"a": "b"}}})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->report().protocol(), 99);
  EXPECT_EQ(read->report().version(), "9.9");
}

TEST(AgentMessages, NonsenseIsRefusedInOneSentence) {
  for (const char* text : {"", "{}", "[]", "{\"protocol\":5}", "{\"protocol\":\"x\"}",
                           "{\"protocol\":5,\"command\":[\"*\"]}"}) {
    EXPECT_THAT(ParseOrders(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected")))
        << text;
  }
  EXPECT_THAT(ParseOrders("{\"protocol\":1}"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("revision 1")));
  for (const char* text : {"", "{}", "{\"ended\":3}", "{\"ended\":{\"worker\":\"x\"}}"})
    EXPECT_THAT(ParseMessage(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected")))
        << text;
}

TEST(AgentMessages, EachOrderArrives) {
  auto read = ParseOrder(Line(SignalOrder(SIGTERM)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->signal().signal(), SIGTERM);
  EXPECT_EQ(read->signal().worker(), -1);
  read = ParseOrder(Line(SignalOrder(SIGKILL, 3)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->signal().worker(), 3);
  EXPECT_EQ(ParseOrder(Line(RestartOrder(12)))->restart(), 12);
  // Zero is a number, too.
  EXPECT_EQ(ParseOrder(Line(RestartOrder(0)))->order_case(), AgentOrder::kRestart);
  EXPECT_EQ(ParseOrder(Line(PortOrder(0)))->order_case(), AgentOrder::kNewPort);
  EXPECT_TRUE(ParseOrder(Line(StartOrder()))->has_start());
  EXPECT_TRUE(ParseOrder(Line(FinishOrder()))->has_finish());
  AgentOrder order;
  *order.mutable_place() = PlaceOrder(3, {5, 8, 1, 4, 1});
  read = ParseOrder(Line(order));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->place().worker(), 3);
  const TorchPlace place = TorchPlaceOf(read->place());
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_size, 4);
  EXPECT_EQ(place.group_rank, 1);
}

TEST(AgentMessages, WhereTheMasterIsArrives) {
  const auto read = ParseMasterOrder(Line(MasterOrder({"fd00::1", 29500})));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(TorchMasterOf(*read).address, "fd00::1");
  EXPECT_EQ(TorchMasterOf(*read).port, 29500);
  for (const char* text :
       {"", "{}", R"({"address":"a"})", R"({"address":"a","port":65536})", R"({"port":1})"})
    EXPECT_FALSE(ParseMasterOrder(text).ok()) << text;
}

TEST(AgentMessages, OrdersThatMakeNoSenseAreRefused) {
  for (const char* text :
       {"", "start", "{}", R"({"signal":{}})", R"({"signal":{"signal":99}})", R"({"restart":-1})",
        R"({"restart":"x"})", R"({"newPort":-1})", R"({"place":{"worker":1}})",
        R"({"place":{"worker":1,"rank":2,"size":3,"localRank":4,"localSize":4}})",
        R"({"master":{"address":"a"}})"}) {
    EXPECT_THAT(ParseOrder(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected")))
        << text;
  }
}

}  // namespace
}  // namespace coordd
