#include "worker/execute/worker_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Departure Lost(int32_t rank, const std::string& detail = "") {
  v1::Departure departure;
  departure.set_rank(rank);
  departure.set_hostname("node3");
  departure.set_pid(4711);
  departure.set_cause(v1::DEPARTURE_CAUSE_CONNECTION_LOST);
  departure.set_detail(detail);
  return departure;
}

TEST(WorkerErrors, TellWhoWasLostAndHow) {
  EXPECT_EQ(DepartureText(Lost(2)), "rank 2 (host node3, pid 4711) was lost");
  EXPECT_EQ(DepartureText(Lost(2, "no heartbeat for 10 s")),
            "rank 2 (host node3, pid 4711) was lost: no heartbeat for 10 s");
  EXPECT_EQ(DepartureText(Lost(2, "was lost: no heartbeat for 10 s")),
            "rank 2 (host node3, pid 4711) was lost: no heartbeat for 10 s");
}

TEST(WorkerErrors, AreOneLineWhateverCoorddSays) {
  constexpr char kForged[] = "a\r\nb\x1b[31m";
  v1::Departure lost = Lost(2, kForged);
  lost.set_hostname(kForged);
  EXPECT_EQ(DepartureText(lost), "rank 2 (host a  b [31m, pid 4711) was lost: a  b [31m");
  v1::Abort abort;
  abort.set_reason(kForged);
  EXPECT_EQ(GenerationEndedBy(Generation{7}, abort).message(), "generation 7 ended: a  b [31m");
  v1::TensorFailure failure;
  failure.set_name("t");
  failure.set_message(kForged);
  EXPECT_EQ(TensorFailureError(Generation{7}, failure).message(),
            "tensor t: a  b [31m (generation 7)");
  v1::Shutdown shutdown;
  shutdown.set_reason(kForged);
  EXPECT_EQ(StoppingText(shutdown), "a  b [31m");
}

TEST(WorkerErrors, NameThreeAndCountTheRest) {
  v1::Abort abort;
  for (int32_t rank : {1, 2, 3, 4, 5}) *abort.add_departures() = Lost(rank);
  EXPECT_THAT(GenerationEndedBy(Generation{7}, abort),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr("generation 7 ended: rank 1"), HasSubstr("rank 3"),
                             Not(HasSubstr("rank 4")), HasSubstr("and 2 more"))));
}

TEST(WorkerErrors, KnowWhatMembersEndByTheirGoodbyesAlone) {
  v1::Abort abort;
  *abort.add_departures() = Lost(1);
  EXPECT_TRUE(IsByGoodbyes(GenerationEndedBy(Generation{7}, abort)));
  abort.set_in_flight(true);
  EXPECT_FALSE(IsByGoodbyes(GenerationEndedBy(Generation{7}, abort)));
  abort.clear_departures();
  abort.set_in_flight(false);
  EXPECT_FALSE(IsByGoodbyes(GenerationEndedBy(Generation{7}, abort)));
}

TEST(WorkerErrors, NameTheGenerationOnce) {
  v1::Abort abort;
  abort.set_reason("generation 7 ended: rank 1 reported that tensor a failed");
  EXPECT_THAT(GenerationEndedBy(Generation{7}, abort),
              StatusIs(absl::StatusCode::kAborted,
                       "generation 7 ended: rank 1 reported that tensor a failed"));
}

TEST(WorkerErrors, NameTheTensorOnce) {
  const absl::Status named = ForTensor("a", absl::AbortedError("gone"));
  EXPECT_THAT(named, StatusIs(absl::StatusCode::kAborted, "tensor a: gone"));
  EXPECT_EQ(ForTensor("a", named), named);
  EXPECT_THAT(ForTensor("a", absl::OkStatus()), IsOk());
}

TEST(WorkerErrors, TakeACodeThatTheyDoNotKnowForInternal) {
  v1::TensorFailure failure;
  failure.set_name("a");
  failure.set_code(99);
  failure.set_message("odd");
  EXPECT_THAT(TensorFailureError(Generation{1}, failure),
              StatusIs(absl::StatusCode::kInternal, "tensor a: odd (generation 1)"));
}

TEST(WorkerErrors, WriteSecondsAsPeopleDo) {
  EXPECT_EQ(SecondsText(absl::Seconds(600)), "600 s");
  EXPECT_EQ(SecondsText(absl::Milliseconds(1500)), "1.5 s");
}

TEST(WorkerErrors, KnowUtf8) {
  for (const char* text : {"", "grad/1", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"})
    EXPECT_TRUE(IsUtf8(text)) << text;
  // Cut, overlong, a surrogate, beyond the last code point, a lone continuation.
  for (const char* text : {"\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80", "\xff"})
    EXPECT_FALSE(IsUtf8(text)) << text;
}

TEST(WorkerErrors, ShortenWholeCharacters) {
  EXPECT_EQ(ShortenedText("abc", 10), "abc");
  EXPECT_EQ(ShortenedText("ab\xc3\xa4", 3), "ab");
  EXPECT_EQ(ShortenedText("ab\xc3\xa4", 4), "ab\xc3\xa4");
  EXPECT_EQ(ShortenedText("\xff!", 4), "?!");
}

}  // namespace
}  // namespace coordd
