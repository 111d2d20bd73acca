#include "worker/execute/trace_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_clock.h"
#include "tests/support/start_time.h"
#include "worker/execute/batch_job.h"
#include "worker/protocol/clock_offset.h"
#include "worker/protocol/trace_chunks.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr auto kCoordd = TraceRecorder::For::kCoordd;
constexpr auto kFile = TraceRecorder::For::kFile;

class TraceRecorderTest : public testing::Test {
 protected:
  void Add(int64_t sequence, LaneId lane = LaneId{0}, absl::Time ready = kStart) {
    TensorSpec spec;
    spec.name = absl::StrCat("tensor", sequence % 3);
    spec.op = ReduceOp::kSum;
    spec.shape = {8};
    std::vector<TensorJob> jobs(1);
    jobs[0].work = std::make_shared<Work>(spec, clock_);
    BatchJob batch({}, lane, sequence, std::move(jobs));
    batch.times.submitted = ready - absl::Milliseconds(1);
    batch.times.ready = batch.times.started = ready;
    batch.times.launched = ready + absl::Milliseconds(2);
    batch.times.ended = ready + absl::Milliseconds(5);
    if (sequence % 3 > 0) batch.algorithm = sequence % 3 == 1 ? "ring" : "slices";
    recorder_.Add(batch, ready + absl::Milliseconds(9));
  }
  static std::vector<int64_t> Sequences(const std::vector<TraceRecord>& records) {
    std::vector<int64_t> sequences;
    for (const TraceRecord& record : records) sequences.push_back(record.sequence);
    return sequences;
  }

  FakeClock clock_;
  TraceRecorder recorder_;
};

TEST_F(TraceRecorderTest, KeepsTheNewest) {
  EXPECT_FALSE(recorder_.on());
  recorder_.Begin(kCoordd, 3);
  EXPECT_TRUE(recorder_.on());
  for (int64_t sequence = 1; sequence <= 5; ++sequence) Add(sequence);
  const TraceRecorder::Recorded recorded = recorder_.End(kCoordd);
  EXPECT_THAT(Sequences(recorded.records), ElementsAre(3, 4, 5));
  EXPECT_EQ(recorded.dropped, 2);
  EXPECT_FALSE(recorder_.on());
  EXPECT_THAT(recorder_.End(kCoordd).records, IsEmpty());
}

TEST_F(TraceRecorderTest, TwoMayRecordAtTheSameTime) {
  recorder_.Begin(kFile, 10);
  Add(1);
  recorder_.Begin(kCoordd, 10);
  Add(2);
  EXPECT_THAT(Sequences(recorder_.End(kCoordd).records), ElementsAre(2));
  EXPECT_TRUE(recorder_.on());
  EXPECT_THAT(Sequences(recorder_.Take(kFile).records), ElementsAre(1, 2));
  Add(3);
  EXPECT_THAT(Sequences(recorder_.End(kFile).records), ElementsAre(3));
}

TEST_F(TraceRecorderTest, ALongNameIsCutBetweenCharacters) {
  std::array<char, 64> name;
  CopyName("short", name);
  EXPECT_STREQ(name.data(), "short");
  CopyName(std::string(63, 'a'), name);
  EXPECT_EQ(std::string(name.data()), std::string(63, 'a'));
  CopyName(std::string(64, 'a'), name);
  EXPECT_EQ(std::string(name.data()), std::string(60, 'a') + "...");
  CopyName(std::string(59, 'a') + "\xC3\xA4" + std::string(20, 'b'), name);
  EXPECT_EQ(std::string(name.data()), std::string(59, 'a') + "...");
}

TEST_F(TraceRecorderTest, ChunksHoldTheNewestThatThereIsRoomFor) {
  recorder_.Begin(kCoordd, 10000);
  for (int64_t sequence = 1; sequence <= 4000; ++sequence) Add(sequence);
  const auto recorded = recorder_.End(kCoordd);
  int64_t left_out = -1;
  const TraceClock clock{true, absl::Seconds(5), absl::Microseconds(7)};
  const auto all = ToTraceChunks(recorded.records, "host", clock, 4 << 20, left_out);
  EXPECT_EQ(left_out, 0);
  int64_t expected = 0;
  for (const std::string& chunk : all) {
    EXPECT_LE(chunk.size(), 256u << 10);
    v1::TraceBatches batches;
    ASSERT_TRUE(batches.ParseFromString(chunk));
    EXPECT_EQ(batches.clock_offset_ns(), 5'000'000'000);
    EXPECT_EQ(batches.clock_error_ns(), 7000);
    EXPECT_THAT(batches.names(), SizeIs(3)) << "each once";
    EXPECT_THAT(batches.algorithms(), SizeIs(2)) << "each once";
    for (const v1::TraceBatch& batch : batches.batches()) {
      EXPECT_EQ(batch.sequence(), ++expected);
      EXPECT_EQ(batches.names(batch.name()), absl::StrCat("tensor", expected % 3));
      EXPECT_EQ(batch.algorithm() == 0, expected % 3 == 0) << "nobody has said";
      if (batch.algorithm() > 0) {
        EXPECT_EQ(batches.algorithms(batch.algorithm() - 1), expected % 3 == 1 ? "ring" : "slices");
      }
      EXPECT_EQ(batch.negotiation_ns(), 1'000'000);
      EXPECT_EQ(batch.pack_ns(), 2'000'000);
      EXPECT_EQ(batch.exchange_ns(), 3'000'000);
      EXPECT_EQ(batch.unpack_ns(), 4'000'000);
      EXPECT_EQ(batch.bytes(), 32);
    }
  }
  EXPECT_EQ(expected, 4000);
  constexpr int64_t kRoomBytes = 20'000;
  const auto some = ToTraceChunks(recorded.records, "host", clock, kRoomBytes, left_out);
  int64_t bytes = 0;
  for (const std::string& chunk : some) bytes += static_cast<int64_t>(chunk.size());
  EXPECT_LE(bytes, kRoomBytes);
  EXPECT_GT(bytes, kRoomBytes / 2);
  v1::TraceBatches first;
  ASSERT_TRUE(first.ParseFromString(some.front()));
  EXPECT_EQ(first.batches(0).sequence(), left_out + 1) << "the newest are in it";
}

TEST_F(TraceRecorderTest, OfOtherLanesWhatWasReadyInTheTimeOfTheSteps) {
  constexpr LaneId kSteps{7};
  const auto at = [](int ms) { return kStart + absl::Milliseconds(ms); };
  recorder_.Begin(kCoordd, 100);
  for (int64_t sequence = 1; sequence <= 6; ++sequence)
    Add(sequence, kSteps, at(static_cast<int>(sequence) * 10));
  Add(1, LaneId{0}, at(15));
  Add(2, LaneId{0}, at(35));
  Add(3, LaneId{0}, at(55));
  const auto recorded = recorder_.End(kCoordd);
  // Two batches a repetition; the second one.
  const auto within = Within(recorded.records, kSteps, 2, 1, 2);
  EXPECT_THAT(Sequences(within), ElementsAre(3, 4, 2));
}

TEST(ClockOffsetTest, IsRightToHalfTheRoundTrip) {
  ClockOffset offset;
  EXPECT_FALSE(offset.known());
  const auto at = [](int ms) { return kStart + absl::Milliseconds(ms); };
  offset.Answered(at(0), at(10), at(105));
  EXPECT_EQ(offset.offset(), absl::Milliseconds(100));
  EXPECT_EQ(offset.error(at(10)), absl::Milliseconds(5));
  offset.Answered(at(20), at(60), at(150));
  EXPECT_EQ(offset.offset(), absl::Milliseconds(100)) << "a slower answer says less";
  offset.Answered(at(70), at(72), at(170));
  EXPECT_EQ(offset.offset(), absl::Milliseconds(99));
  EXPECT_EQ(offset.error(at(72)), absl::Milliseconds(1));
  EXPECT_GT(offset.error(at(72) + absl::Minutes(1)), absl::Milliseconds(3)) << "clocks drift";
  offset.Answered(at(60'072), at(60'076), at(60'174));
  EXPECT_EQ(offset.error(at(60'076)), absl::Milliseconds(2)) << "better than an old one";
}

}  // namespace
}  // namespace coordd
