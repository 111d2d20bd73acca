#include "client/coordctl/trace_report.h"

#include <map>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/coordctl/state_view.h"
#include "common/protocol/protocol_bounds.h"
#include "coordd/v1/trace.pb.h"

namespace coordd {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMs = 1'000'000;

struct Phases {
  int64_t submitted = 0, negotiation = 0, queue = 0, pack = 0, exchange = 0, unpack = 0;  // ms
};

v1::TraceBatch Batch(int64_t sequence, Phases ms, bool begins_step = true) {
  v1::TraceBatch batch;
  batch.set_lane(kFirstScheduleLane);
  batch.set_sequence(sequence);
  batch.set_kind(v1::COLLECTIVE_KIND_ALLREDUCE);
  batch.set_tensors(2);
  batch.set_bytes(1024);
  batch.set_begins_step(begins_step);
  batch.set_submitted_ns(ms.submitted * kMs);
  batch.set_negotiation_ns(ms.negotiation * kMs);
  batch.set_queue_ns(ms.queue * kMs);
  batch.set_pack_ns(ms.pack * kMs);
  batch.set_exchange_ns(ms.exchange * kMs);
  batch.set_unpack_ns(ms.unpack * kMs);
  return batch;
}

v1::TraceRank* AddRank(v1::TraceReply* reply, const std::vector<v1::TraceBatch>& batches,
                       int64_t offset_ms = 0) {
  v1::TraceRank* rank = reply->add_ranks();
  rank->set_rank(reply->ranks_size() - 1);
  rank->set_hostname("node1");
  rank->set_pid(100 + rank->rank());
  v1::TraceBatches part;
  part.add_names("layer1.weight");
  part.set_backend("host");
  part.set_clock_offset_ns(offset_ms * kMs);
  part.set_clock_error_ns(20'000);
  for (const v1::TraceBatch& batch : batches) *part.add_batches() = batch;
  rank->add_batches(part.SerializeAsString());
  return rank;
}

TEST(TraceTimeout, IsTheRecordingsLongestAndAMinute) {
  v1::TraceRequest request;
  request.set_seconds(2.5);
  EXPECT_EQ(TraceTimeout(request), absl::Seconds(62.5));
  request.set_seconds(0);
  request.set_steps(10);
  EXPECT_EQ(TraceTimeout(request), absl::Minutes(6));
}

TEST(TraceReport, OfAJobThatHangsItSaysWhatItWaitsFor) {
  v1::TraceReply reply;
  reply.set_job("train");
  reply.set_generation(2);
  reply.set_size(2);
  reply.set_seconds(30);
  AddRank(&reply, {});
  AddRank(&reply, {});
  const TraceSummary summary = Summarize(reply);
  EXPECT_TRUE(NothingExecuted(summary));
  v1::ServerState state;
  EXPECT_EQ(StallsText(state), "");
  v1::StalledTensor* stall = state.add_jobs()->add_stalled();
  stall->set_name("grad");
  stall->set_waiting_seconds(12);
  stall->add_ready_ranks(0);
  stall->set_ready_count(1);
  stall->add_missing_ranks(1);
  stall->set_missing_count(1);
  EXPECT_EQ(NothingText(summary, StallsText(state)),
            "job train, generation 2, 2 ranks: nothing was executed in 30 s; stalled for 12 s: "
            "grad; ranks in: 0; ranks missing: 1\n");
  EXPECT_THAT(NothingText(summary, ""), HasSubstr("`coordctl status`"));
  AddRank(&reply, {Batch(1, {.exchange = 1})});
  EXPECT_FALSE(NothingExecuted(Summarize(reply)));
}

// Rank 1 comes 30 ms late to each of three steps of 100 ms. Its clock is a second behind coordd's.
v1::TraceReply OneIsLate() {
  v1::TraceReply reply;
  reply.set_job("train");
  reply.set_generation(2);
  reply.set_size(2);
  reply.set_steps(3);
  reply.set_lane(kFirstScheduleLane);
  std::vector<v1::TraceBatch> early, late;
  for (int64_t step = 0; step < 3; ++step) {
    early.push_back(Batch(1 + step, {100 * step, 5, 0, 1, 40, 2}));
    late.push_back(Batch(1 + step, {100 * step + 30 - 1000, 5, 0, 1, 10, 2}));
  }
  AddRank(&reply, early);
  AddRank(&reply, late, 1000);
  return reply;
}

double Of(const RankSummary& rank, TracePhase phase) {
  return rank.phase_ms[static_cast<size_t>(phase)];
}

TEST(TraceReport, TellsWhereAStepGoes) {
  const TraceSummary summary = Summarize(OneIsLate());
  ASSERT_EQ(summary.ranks.size(), 2u);
  const RankSummary& early = summary.ranks[0];
  EXPECT_THAT(early.step_ms, DoubleNear(100, 1e-6));
  EXPECT_EQ(early.steps, 2) << "from the first beginning to the last";
  EXPECT_THAT(Of(early, TracePhase::kNegotiate), DoubleNear(5, 1e-6));
  EXPECT_THAT(Of(early, TracePhase::kPack), DoubleNear(3, 1e-6)) << "in and out";
  EXPECT_THAT(Of(early, TracePhase::kWait), DoubleNear(30, 1e-6));
  EXPECT_THAT(Of(early, TracePhase::kTransfer), DoubleNear(10, 1e-6));
  EXPECT_THAT(Of(early, TracePhase::kProgram), DoubleNear(52, 1e-6));
  EXPECT_THAT(Of(summary.ranks[1], TracePhase::kWait), DoubleNear(0, 1e-6));
}

TEST(TraceReport, TellsWhoCameLastHowOftenAndByHowMuch) {
  const TraceSummary summary = Summarize(OneIsLate());
  EXPECT_EQ(summary.latest_rank, 1);
  EXPECT_EQ(summary.ranks[1].last_in, 3);
  EXPECT_EQ(summary.ranks[1].collectives, 3);
  EXPECT_THAT(summary.ranks[1].lag_ms_mean, DoubleNear(30, 1e-6));
  EXPECT_EQ(summary.ranks[0].last_in, 0);
  EXPECT_THAT(summary.ranks[0].lag_ms_max, DoubleNear(0, 1e-6));
  const std::string text = ToText(summary, "train.trace.json");
  EXPECT_THAT(text, HasSubstr("job train, generation 2, 2 ranks: 3 steps, 100.000 ms each"));
  EXPECT_THAT(text, HasSubstr("the others wait for rank 1"));
  EXPECT_THAT(text, HasSubstr("train.trace.json (clocks of the ranks are right to 20 us)"));
  const auto json = nlohmann::json::parse(ToJson(summary, "f"));
  EXPECT_EQ(json["latest_rank"], 1);
  EXPECT_EQ(json["ranks"][1]["last_in"], 3);
  EXPECT_NEAR(json["ranks"][0]["phase_ms"]["wait"], 30, 1e-6);
}

TEST(TraceReport, ABroadcastTellsNothingAboutLateness) {
  v1::TraceReply reply = OneIsLate();
  for (v1::TraceRank& rank : *reply.mutable_ranks()) {
    v1::TraceBatches part;
    ASSERT_TRUE(part.ParseFromString(rank.batches(0)));
    for (v1::TraceBatch& batch : *part.mutable_batches())
      batch.set_kind(v1::COLLECTIVE_KIND_BROADCAST);
    rank.set_batches(0, part.SerializeAsString());
  }
  const TraceSummary summary = Summarize(reply);
  EXPECT_EQ(summary.latest_rank, -1);
  EXPECT_EQ(summary.ranks[1].collectives, 0);
  EXPECT_THAT(ToText(summary, ""), Not(HasSubstr("the others wait")));
}

TEST(TraceReport, SaysWhatIsMissing) {
  v1::TraceReply reply = OneIsLate();
  reply.set_note("generation 2 ended");
  reply.mutable_ranks(1)->clear_batches();
  reply.mutable_ranks(1)->set_missing("rank 1 was lost");
  reply.mutable_ranks(0)->set_dropped(7);
  const TraceSummary summary = Summarize(reply);
  const std::string text = ToText(summary, "");
  EXPECT_THAT(text, HasSubstr("note: generation 2 ended"));
  EXPECT_THAT(text, HasSubstr("missing: rank 1 was lost"));
  EXPECT_THAT(text, HasSubstr("7 older batches found no room"));
  EXPECT_THAT(TimelineOf(reply), HasSubstr("incomplete"));
}

TEST(TraceReport, TheTimelineIsOnOneClockWithAProcessForEachRank) {
  const auto timeline = nlohmann::json::parse(TimelineOf(OneIsLate()));
  std::map<int, std::vector<double>> begins;
  std::map<std::string, int> names;
  for (const auto& event : timeline["traceEvents"]) {
    if (event["ph"] == "X" && event["name"] == "layer1.weight and 1 more")
      begins[event["pid"]].push_back(event["ts"]);
    ++names[event["name"]];
    if (event["ph"] == "X") {
      EXPECT_GT(event["dur"], 0);
    }
  }
  EXPECT_THAT(begins[0], testing::ElementsAre(0, 100'000, 200'000)) << "microseconds";
  EXPECT_THAT(begins[1], testing::ElementsAre(30'000, 130'000, 230'000));
  EXPECT_EQ(names["HOST_ALLREDUCE"], 6);
  EXPECT_EQ(names["WAIT_FOR_OTHER_TENSOR_DATA"], 6);
  EXPECT_EQ(names["WAIT_FOR_OTHER_RANKS"], 3) << "of the rank that waits";
  EXPECT_EQ(names["MEMCPY_IN_FUSION_BUFFER"], 6);
  EXPECT_EQ(names["CYCLE_START"], 6);
  EXPECT_EQ(names["QUEUE"], 0) << "what took no time is left out";
}

TEST(TraceReport, TheTimelineNamesTheAlgorithmOfABatch) {
  v1::TraceReply reply;
  std::vector<v1::TraceBatch> batches;
  for (const int32_t algorithm : {0, 1, 2, 3, -1}) {  // the last two are none
    batches.push_back(Batch(algorithm, {0, 0, 0, 0, 10, 0}, false));
    batches.back().set_algorithm(algorithm);
  }
  AddRank(&reply, batches);
  v1::TraceBatches part;
  ASSERT_TRUE(part.ParseFromString(reply.ranks(0).batches(0)));
  part.add_algorithms("ring");
  part.add_algorithms("slices_by_dimensions");
  reply.mutable_ranks(0)->set_batches(0, part.SerializeAsString());
  const auto timeline = nlohmann::json::parse(TimelineOf(reply));
  std::vector<std::string> algorithms;
  for (const auto& event : timeline["traceEvents"]) {
    if (event.contains("args") && event["args"].contains("batch"))
      algorithms.push_back(event["args"].value("algorithm", ""));
  }
  EXPECT_THAT(algorithms, testing::ElementsAre("", "ring", "slices_by_dimensions", "", ""));
}

TEST(TraceReport, WhatIsOnADeviceHasATrackThereFromItsTurnOn) {
  v1::TraceReply reply;
  std::vector<v1::TraceBatch> batches = {Batch(1, {0, 0, 0, 0, 10, 0}),
                                         Batch(2, {2, 0, 0, 0, 16, 0}, false)};
  batches[0].set_enqueue_ns(1 * kMs);
  batches[1].set_enqueue_ns(2 * kMs);
  batches[1].set_device_queue_ns(6 * kMs);
  for (v1::TraceBatch& batch : batches) batch.set_on_device(true);
  AddRank(&reply, batches);
  const auto timeline = nlohmann::json::parse(TimelineOf(reply));
  int device = -1;
  std::vector<std::pair<double, double>> on_device;
  std::vector<double> begun;
  for (const auto& event : timeline["traceEvents"])
    if (event["name"] == "thread_name" && event["args"]["name"] == "device") device = event["tid"];
  for (const auto& event : timeline["traceEvents"]) {
    if (event["ph"] == "X" && event["tid"] == device)
      on_device.emplace_back(event["ts"], event["dur"]);
    if (event["name"] == "NCCL_ALLREDUCE") begun.push_back(event["args"]["begun_after_us"]);
  }
  EXPECT_THAT(on_device,
              testing::ElementsAre(testing::Pair(1000, 9000), testing::Pair(10'000, 8000)));
  EXPECT_THAT(begun, testing::ElementsAre(1000, 8000));
}

TEST(TraceReport, BatchesThatOverlapHaveTracksOfTheirOwn) {
  v1::TraceReply reply;
  AddRank(&reply, {Batch(1, {0, 0, 0, 0, 10, 0}), Batch(2, {5, 0, 0, 0, 10, 0}, false),
                   Batch(3, {15, 0, 0, 0, 10, 0}, false)});
  const auto timeline = nlohmann::json::parse(TimelineOf(reply));
  std::vector<int> tracks;
  for (const auto& event : timeline["traceEvents"])
    if (event["name"] == "HOST_ALLREDUCE") tracks.push_back(event["tid"]);
  EXPECT_THAT(tracks, testing::ElementsAre(1, 2, 1));
}

TEST(TraceReport, NegotiatedBatchesThatOverlapAreOneCycle) {
  v1::TraceReply reply;
  std::vector<v1::TraceBatch> batches = {Batch(1, {0, 2, 0, 0, 10, 0}, false),
                                         Batch(2, {5, 2, 0, 0, 10, 0}, false),
                                         Batch(3, {30, 2, 0, 0, 10, 0}, false)};
  for (v1::TraceBatch& batch : batches) batch.set_lane(0);
  AddRank(&reply, batches);
  const auto timeline = nlohmann::json::parse(TimelineOf(reply));
  std::vector<double> cycles;
  for (const auto& event : timeline["traceEvents"])
    if (event["name"] == "CYCLE_START") cycles.push_back(event["ts"]);
  EXPECT_THAT(cycles, testing::ElementsAre(0, 30'000));
}

TEST(TraceReport, WhatIsNoneIsSkipped) {
  v1::TraceReply reply = OneIsLate();
  reply.mutable_ranks(0)->add_batches("\xff\xff not a message");
  EXPECT_EQ(Summarize(reply).ranks[0].batches, 3);
  EXPECT_TRUE(nlohmann::json::accept(TimelineOf(reply)));
  EXPECT_TRUE(nlohmann::json::accept(TimelineOf(v1::TraceReply())));
  EXPECT_EQ(Summarize(v1::TraceReply()).latest_rank, -1);
}

}  // namespace
}  // namespace coordd
