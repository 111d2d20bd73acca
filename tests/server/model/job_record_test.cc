// What of a job outlives coordd, as bytes.
#include "server/model/job_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

TEST(JobRecord, AdoptedStateGoesOnFarBehindWhatItMayHaveLost) {
  v1::JobRecord record;
  record.set_generation(7);
  StoredState stored{"c0ffee", Epoch{kAdoptionStride + 3}, {}, /*adopted=*/true};
  const StateWrite job = JobWrite("train", record);
  const StateWrite forgotten = ForgottenWrite(Generation{4});
  stored.records = {{job.key, *job.value}, {forgotten.key, *forgotten.value}};
  const auto restored = ParseRecords(stored);
  ASSERT_THAT(restored, IsOk());
  EXPECT_EQ(restored->jobs.at("train").generation(), 7 + kAdoptionStride);
  EXPECT_EQ(restored->last_forgotten, Generation{4 + kAdoptionStride});
}

TEST(JobRecord, SaysWhichRecordIsNone) {
  EXPECT_THAT(ParseRecords({"c0ffee", Epoch{1}, {{"job/train", "\xff\xff"}}}),
              StatusIs(Code::kDataLoss, HasSubstr("job/train")));
}

TEST(JobRecord, TokenHashesTellNothingAndDiffer) {
  EXPECT_EQ(TokenHash("c", "j", ""), "");
  EXPECT_EQ(TokenHash("c", "j", "t"), TokenHash("c", "j", "t"));
  EXPECT_NE(TokenHash("c", "j", "t"), TokenHash("d", "j", "t"));
  EXPECT_NE(TokenHash("c", "j", "t"), TokenHash("c", "k", "t"));
  EXPECT_NE(TokenHash("c", "jt", ""), TokenHash("c", "j", "t"));
}

}  // namespace
}  // namespace coordd
