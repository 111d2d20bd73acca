#include "server/job/trace_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

// What is counted of a rank is what is kept of it, however small its pieces are.
TEST(TraceState, PiecesOfOneByteAreSoonTooMany) {
  TraceState trace;
  Effects effects;
  absl::Time now = absl::FromUnixSeconds(1000);
  TraceCall call{.call = CallId{1}, .request = {}};
  call.request.set_seconds(1);
  ASSERT_THAT(trace.Begin(call, {}, {{.session = SessionId{1}, .traces = true, .hostname = "a"}},
                          LaneId{0}, {now, effects}),
              IsOk());
  v1::TraceChunk chunk;
  chunk.set_id(1);
  chunk.set_begun(true);
  trace.OnChunk(Rank{0}, chunk, {now, effects});
  now += absl::Seconds(2);
  trace.Tick({now, effects});
  chunk.set_begun(false);
  chunk.set_batches("x");
  constexpr int64_t kPieces = TraceState::kBytesOfRankMax / TraceState::kChunkCosts;
  for (int64_t i = 0; i < kPieces; ++i) trace.OnChunk(Rank{0}, chunk, {now, effects});
  chunk.set_last(true);
  trace.OnChunk(Rank{0}, chunk, {now, effects});
  const auto& answer = std::get<TraceAnswer>(effects.outgoing.back());
  EXPECT_THAT(answer.status, IsOk());
  ASSERT_EQ(answer.reply.ranks_size(), 1);
  EXPECT_EQ(answer.reply.ranks(0).missing(), "it sent more than was asked for");
  EXPECT_LE(answer.reply.ranks(0).batches_size(), kPieces);
}

TEST(TraceState, RefusesOneStepAndOneSecondAsSuch) {
  TraceCall call{.call = CallId{1}, .request = {}};
  call.request.set_steps(1);
  call.request.set_seconds(1);
  Effects effects;
  EXPECT_THAT(TraceState().Begin(call, {}, {}, LaneId{0}, {absl::UnixEpoch(), effects}).message(),
              testing::HasSubstr("a trace of 1 step and 1 second, expected"));
}

}  // namespace
}  // namespace coordd
