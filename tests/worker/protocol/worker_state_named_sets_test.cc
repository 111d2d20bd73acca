// What a worker decides about process sets that their members make alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

// Of rank 0 of 3, whose coordd knows such sets.
WorkerStateOptions Options(WorkerStateOptions options = Member::Options()) {
  options.named_sets = true;
  return options;
}
class NamedSetsTest : public ::testing::Test {
 protected:
  explicit NamedSetsTest(const WorkerStateOptions& options = Options())
      : member_(kStart, options) {}

  void Ask(int64_t token, const std::string& name, std::vector<int32_t> ranks, int32_t remove = 0,
           absl::Duration timeout = kTimeout) {
    member_.Turn(ProcessSetAsked{
        token, ProcessSetId{remove}, std::move(ranks), member_.now() + timeout, {}, name});
  }
  std::vector<v1::ProcessSetRequest> Requests() {
    std::vector<v1::ProcessSetRequest> requests;
    for (const auto& message : member_.sent(v1::WorkerMessage::kProcessSetRequest))
      requests.push_back(message.process_set_request());
    member_.Clear();
    return requests;
  }
  ProcessSetAnswer Answer() {
    const auto answers = member_.All<ProcessSetAnswer>();
    return answers.size() == 1 ? answers[0] : ProcessSetAnswer{-1, absl::OkStatus(), {}};
  }

  Member member_;
};

TEST_F(NamedSetsTest, AreAskedForByNameBesideTheNumberedRequests) {
  Ask(5, "tp", {0, 2});
  Ask(6, "", {1});
  const auto requests = Requests();
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0].name(), "tp");
  EXPECT_EQ(requests[0].request(), 0);
  EXPECT_THAT(requests[0].ranks(), ElementsAre(0, 2));
  EXPECT_EQ(requests[1].request(), 1);
  member_.ChangeNamed("tp", 4, {0, 2});
  ASSERT_THAT(member_.All<DefineProcessSet>(), SizeIs(1));
  EXPECT_TRUE(member_.All<DefineProcessSet>()[0].member);
  EXPECT_FALSE(member_.All<DefineProcessSet>()[0].for_pair);
  EXPECT_EQ(Answer().token, 5);
  EXPECT_EQ(Answer().process_set, ProcessSetId{4});
  member_.Submit({[] {
    TensorSpec spec = Gradient("a");
    spec.process_set = ProcessSetId{4};
    return spec;
  }()});
  EXPECT_THAT(member_.failure(1), IsOk());
}

TEST_F(NamedSetsTest, AreEndedUnderTheirName) {
  Ask(5, "tp", {0, 2});
  member_.ChangeNamed("tp", 4, {0, 2});
  member_.Clear();
  Ask(6, "", {}, /*remove=*/4);
  const auto requests = Requests();
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_EQ(requests[0].name(), "tp");
  EXPECT_EQ(requests[0].remove(), 4);
  EXPECT_EQ(requests[0].request(), 0);
  member_.ChangeNamed("tp", 4, {});
  EXPECT_THAT(member_.All<EndProcessSet>(), SizeIs(1));
  EXPECT_EQ(Answer().token, 6);
}

TEST_F(NamedSetsTest, ARankWaitsForOneAnswerUnderAName) {
  Ask(5, "tp", {0, 2});
  Ask(6, "tp", {0, 2});
  EXPECT_EQ(Answer().token, 6);
  EXPECT_THAT(Answer().status, StatusIs(Code::kAlreadyExists, HasSubstr("process set tp")));
  EXPECT_THAT(Requests(), SizeIs(1));
  member_.RefuseSet(0, Code::kInvalidArgument, "rank 1 asks for others", "tp");
  EXPECT_EQ(Answer().token, 5);
  EXPECT_THAT(Answer().status, StatusIs(Code::kInvalidArgument, HasSubstr("rank 1")));
  member_.Clear();
  Ask(7, "tp", {0, 2});
  EXPECT_THAT(Requests(), SizeIs(1));
}

TEST_F(NamedSetsTest, AreWithdrawnAtTheDeadline) {
  Ask(5, "tp", {0, 2}, 0, absl::Seconds(1));
  Requests();
  member_.Advance(absl::Seconds(1));
  const auto requests = Requests();
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_TRUE(requests[0].withdrawn());
  EXPECT_EQ(requests[0].name(), "tp");
  member_.RefuseSet(0, Code::kCancelled, "not made by rank 2", "tp");
  EXPECT_THAT(
      Answer().status,
      StatusIs(Code::kDeadlineExceeded,
               HasSubstr("the process set tp of ranks [0, 2]: not every member had asked")));
  EXPECT_THAT(Answer().status, StatusIs(Code::kDeadlineExceeded, HasSubstr("made by rank 2")));
}

TEST(NamedSets, AreRefusedWhereCoorddIsOlder) {
  Member member;
  member.Turn(ProcessSetAsked{5, {}, {0, 2}, member.now() + kTimeout, {}, "tp"});
  ASSERT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_THAT(member.All<ProcessSetAnswer>()[0].status,
              StatusIs(Code::kUnimplemented, HasSubstr("process set tp: this coordd is")));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kProcessSetRequest), IsEmpty());
}

class ReformingNamedSetsTest : public NamedSetsTest {
 protected:
  ReformingNamedSetsTest() : NamedSetsTest(Options(Member::Options(OnFailure::kRaise))) {}
};

TEST_F(ReformingNamedSetsTest, EndWithTheirGenerationAndOpenRequestsFail) {
  Ask(5, "tp", {0, 1});
  member_.ChangeNamed("tp", 4, {0, 1});
  Ask(6, "dp", {0, 2});
  member_.Clear();
  member_.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "killed", /*in_flight=*/true,
                /*reforms=*/true, /*report_sets=*/true);
  EXPECT_EQ(Answer().token, 6);
  EXPECT_TRUE(IsGenerationChanged(Answer().status));
  const auto reports = member_.sent(v1::WorkerMessage::kRecoveryReport);
  ASSERT_THAT(reports, SizeIs(1));
  EXPECT_THAT(reports[0].recovery_report().process_sets().sets(), IsEmpty());
}

class DetachedNamedSetsTest : public NamedSetsTest {
 protected:
  DetachedNamedSetsTest() : NamedSetsTest(Options(Member::LastingOptions())) {}

  // The connection is lost; what this rank says when it comes back.
  v1::ResumeReport ComesBack() {
    member_.Turn(StreamEnded{absl::UnavailableError("Socket closed"), 0});
    member_.Clear();
    for (int i = 0; i < 40 && member_.All<OpenStream>().empty(); ++i)
      member_.Advance(absl::Milliseconds(100));
    v1::ResumeReport whole;
    for (const auto& message : member_.sent(v1::WorkerMessage::kResumeReport))
      whole.MergeFrom(message.resume_report());
    return whole;
  }
};

TEST_F(DetachedNamedSetsTest, AreReportedWithTheirNamesAndOpenRequestsAskedAnew) {
  Ask(5, "tp", {0, 2});
  member_.ChangeNamed("tp", 4, {0, 2}, /*position=*/3);
  Ask(6, "dp", {0, 1});
  const v1::ResumeReport report = ComesBack();
  ASSERT_THAT(report.process_sets(), SizeIs(1));
  EXPECT_EQ(report.process_sets(0).name(), "tp");
  EXPECT_EQ(report.process_sets(0).request(), 0);
  EXPECT_THAT(report.received_by(), ElementsAre(4));
  EXPECT_EQ(report.answered_requests(), 0);
  member_.Clear();
  v1::CoordinatorMessage message;
  message.set_epoch(8);
  message.set_generation(1);
  message.set_sequence(1);
  message.mutable_resumed()->set_session(5);
  member_.Turn(CoordinatorSaid{std::move(message), 1});
  const auto requests = Requests();
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_EQ(requests[0].name(), "dp");
  EXPECT_THAT(requests[0].ranks(), ElementsAre(0, 1));
}

// Whoever has not heard of the end is told: coordd has to know to whom that went.
TEST_F(DetachedNamedSetsTest, AnEndIsReportedWithItsSet) {
  Ask(5, "tp", {0, 2});
  member_.ChangeNamed("tp", 4, {0, 2}, /*position=*/3);
  Ask(6, "", {}, /*remove=*/4);
  member_.ChangeNamed("tp", 4, {}, /*position=*/5);
  const v1::ResumeReport report = ComesBack();
  ASSERT_THAT(report.process_sets(), SizeIs(1));
  EXPECT_EQ(report.process_sets(0).process_set(), 4);
  EXPECT_EQ(report.process_sets(0).name(), "tp");
  EXPECT_THAT(report.received_by(), ElementsAre(4, 4));
}

}  // namespace
}  // namespace coordd
