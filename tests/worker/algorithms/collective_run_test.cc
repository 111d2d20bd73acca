// What a run asks of its transport, and when: the test answers for the transport.
#include "worker/algorithms/collective_run.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

namespace coordd {
namespace {

constexpr int64_t kSegmentBytes = 64;

// Operations that end when the test says so.
class HeldTransport final : public Transport {
 public:
  struct Operation {
    Tag tag;
    size_t size_bytes = 0;
    const std::byte* bytes = nullptr;
    Done done;
  };

  absl::string_view name() const override { return "held"; }
  absl::Status Connect(const GroupLayout&, Store&, absl::Time) override { return {}; }
  void Send(Rank, Tag tag, absl::Span<const std::byte> bytes, Done done) override {
    sends.push_back({tag, bytes.size(), bytes.data(), std::move(done)});
  }
  void Receive(Rank, Tag tag, absl::Span<std::byte> bytes, Done done) override {
    receives.push_back({tag, bytes.size(), bytes.data(), std::move(done)});
  }
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override {
    Receive(from, tag, landing, TakenFrom(landing, std::move(taken)));
  }
  bool Progress() override { return false; }
  void Abort() override {}

  static void EndFirst(std::deque<Operation>& operations) {
    Done done = std::move(operations.front().done);
    operations.pop_front();
    std::move(done)(absl::OkStatus());
  }
  std::deque<Operation> sends, receives;
};

// Gives `segments` to rank 1 and gets as many from it, which are combined with the input or not.
TransferSchedule Exchange(int64_t segments, bool combines) {
  const int64_t bytes = segments * kSegmentBytes;
  const BufferRange input{BufferRole::kInput, 0, bytes}, output{BufferRole::kOutput, 0, bytes};
  AlgorithmStep step;
  step.sends.push_back({Rank{1}, input});
  step.receives.push_back({Rank{1}, output, {}});
  if (combines) step.receives.back().operand = input;
  TransferSchedule schedule;
  schedule.steps.push_back(std::move(step));
  return schedule;
}

struct Memory {
  explicit Memory(int64_t segments)
      : input(static_cast<size_t>(segments * kSegmentBytes)), output(input.size()) {}
  std::vector<std::byte> input, output, scratch = std::vector<std::byte>(2 * kSegmentBytes);
  RunBuffers buffers() { return {input, absl::MakeSpan(output), {}, absl::MakeSpan(scratch)}; }
};

CollectiveRun MakeRun(TransferSchedule schedule, RunBuffers buffers, HeldTransport& transport) {
  return {std::move(schedule),
          DataType::kInt64,
          ReduceOp::kSum,
          Tag{LaneId{1}, 1},
          buffers,
          transport,
          RunOptions{.segment_bytes = kSegmentBytes}};
}

// So that what comes between two turns of its rank has its place already.
TEST(CollectiveRun, WaitsForMoreThanItSends) {
  HeldTransport transport;
  Memory memory(100);
  CollectiveRun run = MakeRun(Exchange(100, /*combines=*/false), memory.buffers(), transport);
  run.Advance();
  EXPECT_EQ(transport.sends.size(), 4u);
  EXPECT_EQ(transport.receives.size(), 32u);
  for (int i = 0; i < 16; ++i) HeldTransport::EndFirst(transport.receives);
  EXPECT_TRUE(run.Advance());
  EXPECT_EQ(transport.receives.size(), 32u);
  while (!transport.sends.empty() || !transport.receives.empty()) {
    if (!transport.sends.empty()) HeldTransport::EndFirst(transport.sends);
    if (!transport.receives.empty()) HeldTransport::EndFirst(transport.receives);
    EXPECT_LE(transport.receives.size(), 32u);
    run.Advance();
  }
  EXPECT_TRUE(run.finished());
  EXPECT_EQ(run.status(), absl::OkStatus());
}

TEST(CollectiveRun, CombinesInRoomForTwoSegments) {
  HeldTransport transport;
  Memory memory(100);
  CollectiveRun run = MakeRun(Exchange(100, /*combines=*/true), memory.buffers(), transport);
  run.Advance();
  EXPECT_EQ(transport.receives.size(), 2u);
  HeldTransport::EndFirst(transport.receives);
  run.Advance();
  EXPECT_EQ(transport.receives.size(), 2u);
  run.Fail(absl::AbortedError("over"));
  while (!transport.sends.empty()) HeldTransport::EndFirst(transport.sends);
  while (!transport.receives.empty()) HeldTransport::EndFirst(transport.receives);
  EXPECT_TRUE(run.finished());
}

TEST(CollectiveRun, BeginsAnewOnOtherMemoryAndWithAnotherTag) {
  HeldTransport transport;
  Memory first(3), second(3);
  CollectiveRun run = MakeRun(Exchange(3, /*combines=*/false), first.buffers(), transport);
  const auto end = [&] {
    while (!transport.sends.empty()) HeldTransport::EndFirst(transport.sends);
    while (!transport.receives.empty()) HeldTransport::EndFirst(transport.receives);
    run.Advance();
    EXPECT_TRUE(run.finished());
  };
  run.Advance();
  end();
  run.Restart(Tag{LaneId{1}, 2}, second.input, absl::MakeSpan(second.output), {});
  EXPECT_FALSE(run.finished());
  run.Advance();
  ASSERT_EQ(transport.sends.size(), 3u);
  ASSERT_EQ(transport.receives.size(), 3u);
  EXPECT_EQ(transport.sends[0].bytes, second.input.data());
  EXPECT_EQ(transport.receives[0].bytes, second.output.data());
  EXPECT_EQ(transport.sends[0].tag.sequence, 2);
  EXPECT_EQ(transport.receives[0].tag.sequence, 2);
  end();
}

}  // namespace
}  // namespace coordd
