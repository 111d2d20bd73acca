#include "worker/transport/shm/shm_transport.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/transport_conformance.h"
#include "worker/base/unix_message.h"
#include "worker/host/host_backend.h"

namespace coordd {
namespace {

using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         testing::Values(TransportCase{
                             .name = "OneNode",
                             .new_group =
                                 [](int32_t) {
                                   return []() -> std::unique_ptr<Transport> {
                                     return std::make_unique<ShmTransport>();
                                   };
                                 }}),
                         [](const auto& info) { return info.param.name; });

constexpr int64_t kArenaBytes = int64_t{256} << 20;

INSTANTIATE_TEST_SUITE_P(HostOnMappedMemory, CollectiveBackendConformance,
                         testing::Values(BackendCase{
                             .name = "OneNode",
                             .new_group =
                                 [](int32_t) {
                                   return []() -> std::unique_ptr<CollectiveBackend> {
                                     return std::make_unique<HostBackend>(
                                         std::make_unique<ShmTransport>(), HostBackendOptions{},
                                         std::make_unique<NodeArena>(
                                             NodeArenaOptions{kArenaBytes}));
                                   };
                                 }}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(HostOverShm, CollectiveBackendConformance,
                         testing::Values(BackendCase{
                             .name = "OneNode",
                             .new_group =
                                 [](int32_t) {
                                   return []() -> std::unique_ptr<CollectiveBackend> {
                                     return std::make_unique<HostBackend>(
                                         std::make_unique<ShmTransport>());
                                   };
                                 }}),
                         [](const auto& info) { return info.param.name; });

TEST(HostBackend, SendsMessagesWhereSomeRankHasNoArena) {
  const BackendCase some{
      .name = "OneNode", .new_group = [](int32_t) {
        auto made = std::make_shared<std::atomic<int>>(0);
        return [made]() -> std::unique_ptr<CollectiveBackend> {
          const int64_t size_bytes =
              NodeArena::kSizeBytesMinOptional / (made->fetch_add(1) % 2 + 1);
          return std::make_unique<HostBackend>(
              std::make_unique<ShmTransport>(), HostBackendOptions{},
              std::make_unique<NodeArena>(NodeArenaOptions{size_bytes, /*required=*/false}));
        };
      }};
  RunRanks<CollectiveBackend>(some, 3, [](BackendContext& context) {
    EXPECT_TRUE(context.object.arena()->memories().empty());
    const auto lane = context.object.OpenMappedLane(LaneId{9}, {Rank{0}, Rank{1}, Rank{2}});
    EXPECT_TRUE(lane.ok() && *lane == nullptr);
    const auto buffer = context.object.AllocateFusionBuffer(100000);
    ASSERT_TRUE(buffer.ok());
    const std::vector<Bytes> inputs = AllInputs(DataType::kFloat32, 3, 25000, 1);
    const Bytes& own = inputs[static_cast<size_t>(ToInt(context.rank))];
    std::copy(own.begin(), own.end(), buffer->begin());
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kFloat32;
    args.op = ReduceOp::kSum;
    args.sequence = 1;
    args.input = args.output = *buffer;
    ASSERT_EQ(RunCollective(context, args), absl::OkStatus());
    EXPECT_EQ(CheckReduced(args.dtype, args.op, inputs, buffer->data(), 25000), "");
  });
}

TEST(ShmSegment, PagesAreThereOnceTheyAreTouchedEvenIfTheProcessLocksItsMemory) {
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "this process may not lock memory";
  const absl::StatusOr<ShmSegment> segment = ShmSegment::Create(int64_t{1} << 28);
  munlockall();
  if (!segment.ok()) GTEST_SKIP() << "this process may lock little memory: " << segment.status();
  struct stat status = {};
  ASSERT_EQ(fstat(segment->fd(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  segment->bytes().front() = std::byte{1};
}

TEST(ShmTransport, RingsOfAnyNodeStayWithinTheSegment) {
  for (int32_t ranks = 1; ranks <= ShmTransport::kMaxLocalRanks; ++ranks) {
    const int64_t capacity = ShmTransport::RingCapacityBytes(ranks);
    EXPECT_LE(capacity * ranks, ShmTransport::kSegmentBytesMax);
    EXPECT_GE(capacity, int64_t{32} << 10);
    EXPECT_EQ(capacity & (capacity - 1), 0);
  }
}

TEST(ShmTransport, RefusesMoreRanksThanItServes) {
  InMemoryStore store;
  ShmTransport transport;
  const absl::Status status =
      transport.Connect(GroupLayout::OneNode(Rank{0}, ShmTransport::kMaxLocalRanks + 1), store,
                        absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(ShmTransport, NamesTheRanksThatDidNotShowUp) {
  InMemoryStore store;
  ShmTransport transport;
  const absl::Status status = transport.Connect(GroupLayout::OneNode(Rank{0}, 3), store,
                                                Clock::Real().Now() + absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 1, 2 did not show up"));
}

// Whoever asks: the first rank, which waits for all, or one that waits for the first.
TEST(ShmTransport, NamesTheRanksOfALargeNodeThatDidNotShowUp) {
  for (int32_t self : {0, 4}) {
    InMemoryStore store;
    ASSERT_TRUE(store.Set(self == 0 ? "shm/4" : "shm/0", "there", absl::InfiniteFuture()).ok());
    ShmTransport transport;
    const absl::Status status = transport.Connect(GroupLayout::OneNode(Rank{self}, 6), store,
                                                  Clock::Real().Now() + absl::Milliseconds(1));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 1, 2, 3, 5 did not show up"));
  }
}

class CountingStore final : public Store {
 public:
  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override {
    ++calls_;
    return store_.Set(key, std::move(value), deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    ++calls_;
    return store_.Get(key, deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override {
    ++calls_;
    return store_.Add(key, delta, deadline);
  }
  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override {
    ++calls_;
    return store_.DeletePrefix(prefix, deadline);
  }
  int64_t calls() const { return calls_; }

 private:
  InMemoryStore store_;
  std::atomic<int64_t> calls_ = 0;
};

TEST(ShmTransport, AsksTheStoreSomeTimesPerRankAndNotForEachPair) {
  constexpr int32_t kRanks = 16;
  CountingStore store;
  std::vector<absl::Status> connected(kRanks);
  std::vector<std::unique_ptr<ShmTransport>> transports;
  for (int32_t rank = 0; rank < kRanks; ++rank)
    transports.push_back(std::make_unique<ShmTransport>());
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      connected[static_cast<size_t>(rank)] = transports[static_cast<size_t>(rank)]->Connect(
          GroupLayout::OneNode(Rank{rank}, kRanks), store, absl::InfiniteFuture());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const absl::Status& status : connected) EXPECT_TRUE(status.ok()) << status;
  EXPECT_LE(store.calls(), 3 * kRanks);
}

TEST(ShmTransport, AbortEndsAConnectThatWaits) {
  InMemoryStore store;
  ShmTransport transport;
  transport.Abort();
  const absl::Status status =
      transport.Connect(GroupLayout::OneNode(Rank{0}, 2), store, absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST(ShmTransport, TurnsAwayStrangersWithoutTheSecret) {
  InMemoryStore store;
  std::thread first = StartThread("rank-0", [&] {
    ShmTransport transport;
    EXPECT_EQ(transport.Connect(GroupLayout::OneNode(Rank{0}, 2), store,
                                Clock::Real().Now() + kGroupHangLimit),
              absl::OkStatus());
  });
  // A stranger that has found the name says hello before rank 1 does.
  const absl::StatusOr<std::string> address = store.Get("shm/0", absl::InfiniteFuture());
  ASSERT_TRUE(address.ok());
  const std::string name = address->substr(0, address->find(' '));
  absl::StatusOr<std::optional<OwnedFd>> stranger = ConnectUnix(name);
  ASSERT_TRUE(stranger.ok() && stranger->has_value());
  EXPECT_EQ(SendUnixMessage((*stranger)->get(), "0123456789abcdef0123456789abcdef 1", 0),
            absl::OkStatus());
  ShmTransport transport;
  EXPECT_EQ(transport.Connect(GroupLayout::OneNode(Rank{1}, 2), store,
                              Clock::Real().Now() + kGroupHangLimit),
            absl::OkStatus());
  first.join();
}

TEST(ShmSegment, CannotBeMappedUnlessItsSizeIsSealed) {
  absl::StatusOr<ShmSegment> segment = ShmSegment::Create(4096);
  ASSERT_TRUE(segment.ok());
  EXPECT_NE(ftruncate(segment->fd(), 0), 0);
  EXPECT_TRUE(
      absl::IsPermissionDenied(ShmSegment::Map(OwnedFd(dup(segment->fd())), 8192).status()));
  EXPECT_TRUE(ShmSegment::Map(OwnedFd(dup(segment->fd())), 4096).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(ShmSegment::Map(OwnedFd(dup(0)), 4096).status()));
}

}  // namespace
}  // namespace coordd
