#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/in_process_transport.h"
#include "tests/worker/support/mapped_memories.h"
#include "worker/host/checking_backend.h"
#include "worker/host/host_backend.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

BackendCase Host(std::string name, HostBackendOptions options) {
  return {.name = std::move(name), .new_group = [options](int32_t world_size) {
            auto network = std::make_shared<InProcessNetwork>(world_size);
            return [network, options]() -> std::unique_ptr<CollectiveBackend> {
              return std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(*network),
                                                   options);
            };
          }};
}

BackendCase OnSharedMemory(std::string name, NodeRunOptions options) {
  return {.name = std::move(name),
          .new_group =
              [options](int32_t world_size) {
                auto network = std::make_shared<InProcessNetwork>(world_size);
                auto shared = std::make_shared<MappedMemories>(world_size);
                return [network, shared, options]() -> std::unique_ptr<CollectiveBackend> {
                  return std::make_unique<HostBackend>(
                      std::make_unique<InProcessTransport>(*network),
                      HostBackendOptions{.node = options},
                      std::make_unique<NodeArena>(shared->all()));
                };
              },
          .max_world_size = 4};
}

// Two nodes, or three, or with ranks left over; forced, because most of the suite's are small.
GroupLayout OnNodes(Rank self, int32_t world_size) {
  if (world_size == 3) return GroupLayout(self, {{1, 2}, {1, 1}});
  if (world_size == 6) return GroupLayout(self, {{3, 2}});
  return world_size % 2 == 0 ? GroupLayout(self, {{2, world_size / 2}})
                             : GroupLayout(self, {{world_size, 1}});
}

// The same with different numbers of ranks, also one.
GroupLayout OnUnevenNodes(Rank self, int32_t world_size) {
  switch (world_size) {
    case 3:
      return GroupLayout(self, {{1, 2}, {1, 1}});
    case 4:
      return GroupLayout(self, {{1, 1}, {1, 3}});
    case 5:
      return GroupLayout(self, {{1, 1}, {1, 4}});
    case 6:
      return GroupLayout(self, {{1, 3}, {1, 2}, {1, 1}});
    case 7:
      return GroupLayout(self, {{1, 4}, {1, 3}});
    default:
      return GroupLayout(self, {{world_size, 1}});
  }
}

BackendCase Uneven(BackendCase of) {
  of.layout = OnUnevenNodes;
  of.max_world_size = 7;
  return of;
}

// Every rank on a node of its own.
BackendCase Apart(std::string name, HostBackendOptions options) {
  BackendCase made = Host(std::move(name), options);
  made.layout = [](Rank self, int32_t world_size) { return GroupLayout(self, {{world_size, 1}}); };
  return made;
}

BackendCase BetweenNodes(std::string name, NodeRunOptions options, int64_t segment_bytes) {
  BackendCase made = OnSharedMemory(std::move(name), {});
  made.new_group = [options, segment_bytes](int32_t world_size) {
    auto network = std::make_shared<InProcessNetwork>(world_size);
    auto shared = std::make_shared<MappedMemories>(world_size);
    return [network, shared, options, segment_bytes]() -> std::unique_ptr<CollectiveBackend> {
      return std::make_unique<HostBackend>(
          std::make_unique<InProcessTransport>(*network),
          HostBackendOptions{.algorithm = HostAlgorithm::kHierarchical,
                             .run = {.segment_bytes = segment_bytes},
                             .node = options},
          std::make_unique<NodeArena>(shared->all()));
    };
  };
  made.layout = OnNodes;
  made.max_world_size = 6;
  return made;
}

// Four nodes, where there are as many ranks.
GroupLayout OnFourNodes(Rank self, int32_t world_size) {
  if (world_size <= 4) return GroupLayout(self, {{world_size, 1}});
  return GroupLayout(self, {{world_size - 4, 2}, {8 - world_size, 1}});
}

BackendCase OnFour(BackendCase of) {
  of.layout = OnFourNodes;
  return of;
}

// Whose nodes lie in racks of two or of three, as many in each where that can be; otherwise they
// go as without.
BackendCase InRacks(BackendCase of) {
  of.layout = [layout = of.layout](Rank self, int32_t world_size) {
    const GroupLayout flat = layout(self, world_size);
    std::vector<NodeRun> nodes;
    NodeDomains racks;
    for (int32_t node = 0; node < flat.num_nodes(); ++node) {
      nodes.push_back({1, flat.ranks_on(node)});
      racks.push_back(node / (flat.num_nodes() % 3 == 0 ? 3 : 2));
    }
    return GroupLayout(self, std::move(nodes), {racks});
  };
  return of;
}

// Every result of the suite compared with the reference besides.
BackendCase Checked(BackendCase of) {
  of.name = "Checked" + of.name;
  of.max_world_size = 3;
  of.new_group = [new_group = of.new_group](int32_t world_size) {
    return [make = new_group(world_size)]() -> std::unique_ptr<CollectiveBackend> {
      return std::make_unique<CheckingBackend>(make(), CheckingOptions{.tolerance = 1e-12});
    };
  };
  return of;
}

HostBackendOptions With(Algorithm allreduce, int64_t segment_bytes) {
  return {.allreduce = allreduce, .run = {.segment_bytes = segment_bytes}};
}

// Each algorithm with every size, and segments so small that most transfers have several.
INSTANTIATE_TEST_SUITE_P(
    InProcess, CollectiveBackendConformance,
    testing::Values(
        Host("ByTable", {}), Host("Ring", With(Algorithm::kRing, 4096)),
        Host("HalvingDoubling", With(Algorithm::kHalvingDoubling, 4096)),
        Host("RecursiveDoubling", With(Algorithm::kRecursiveDoubling, 65536)),
        OnSharedMemory("SharedMemory", {.staging = {.buffer_bytes = 8192,
                                                    .broadcast_bytes = 512,
                                                    .exchange_bytes = 8192},
                                        .stream_bytes_min = 65536,
                                        .work_bytes_max = 16384}),
        BetweenNodes(
            "BetweenNodes",
            {.inline_bytes_max = 64,
             .staging = {.buffer_bytes = 8192, .broadcast_bytes = 512, .exchange_bytes = 8192},
             .stream_bytes_min = 65536,
             .work_bytes_max = 16384},
            4096),
        Uneven(BetweenNodes(
            "UnevenNodes",
            {.inline_bytes_max = 64,
             .staging = {.buffer_bytes = 8192, .broadcast_bytes = 512, .exchange_bytes = 8192},
             .work_bytes_max = 16384},
            4096)),
        Uneven(BetweenNodes("UnevenNodesByLeaders", {}, 65536)),
        Apart("Apart", {.run = {.segment_bytes = 4096}, .broadcast_segment_bytes = 20000}),
        InRacks(Apart("ApartInRacks", {.run = {.segment_bytes = 4096}})),
        InRacks(OnFour(BetweenNodes("NodesInRacks", {}, 65536))),
        Checked(BetweenNodes("BetweenNodes", {}, int64_t{1} << 20)), Checked(Host("ByTable", {})),
        Checked(OnSharedMemory("SharedMemory", {}))),
    [](const auto& info) { return info.param.name; });

// Each rank on a thread of its own, until all have returned.
void RunRanks(int32_t size, const std::function<void(int32_t)>& run) {
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < size; ++r) threads.push_back(StartThread("rank", [&run, r] { run(r); }));
  for (std::thread& thread : threads) thread.join();
}

// Where somebody wants flat ones, or a node has no arenas, all do without the hierarchy.
TEST(HostBackendBetweenNodes, RanksThatDifferAgree) {
  enum class Differs { kWantsFlat, kHasNone };
  for (const Differs differs : {Differs::kWantsFlat, Differs::kHasNone}) {
    const MappedMemories shared(4);
    InProcessNetwork network(4);
    InMemoryStore store;
    std::barrier all(4);
    RunRanks(4, [&](int32_t r) {
      HostBackendOptions options{.algorithm = HostAlgorithm::kHierarchical};
      if (differs == Differs::kWantsFlat && r == 3) options.algorithm = HostAlgorithm::kFlat;
      const bool has_none = differs == Differs::kHasNone && r >= 2;
      HostBackend backend(std::make_unique<InProcessTransport>(network), options,
                          has_none ? nullptr : std::make_unique<NodeArena>(shared.all()));
      ASSERT_EQ(backend.Connect(GroupLayout(Rank{r}, {{2, 2}}), store,
                                Clock::Real().Now() + kGroupHangLimit),
                absl::OkStatus());
      all.arrive_and_wait();
      BackendContext context{backend, Rank{r}, 4, all, [] {}};
      const Bytes input = TestInput(DataType::kFloat32, r, 100003, 1);
      Bytes output(input.size());
      CollectiveArgs args = AllreduceArgs(DataType::kFloat32, ReduceOp::kSum, input, output);
      args.sequence = 1;
      EXPECT_EQ(RunCollective(context, args), absl::OkStatus());
      EXPECT_EQ(CheckReduced(DataType::kFloat32, ReduceOp::kSum,
                             AllInputs(DataType::kFloat32, 4, 100003, 1), output.data(), 100003),
                "");
      all.arrive_and_wait();
    });
  }
}

// One that wants flat ones keeps the racks' dimensions off for all.
TEST(HostBackendBetweenNodes, RanksInRacksAgree) {
  for (const bool flat : {false, true}) {
    InProcessNetwork network(4);
    InMemoryStore store;
    std::barrier all(4);
    RunRanks(4, [&](int32_t r) {
      HostBackendOptions options;
      if (flat && r == 3) options.algorithm = HostAlgorithm::kFlat;
      HostBackend backend(std::make_unique<InProcessTransport>(network), options);
      ASSERT_EQ(backend.Connect(GroupLayout(Rank{r}, {{4, 1}}, {{0, 0, 1, 1}}), store,
                                Clock::Real().Now() + kGroupHangLimit),
                absl::OkStatus());
      all.arrive_and_wait();
      BackendContext context{backend, Rank{r}, 4, all, [] {}};
      absl::string_view algorithm;
      const Bytes input = TestInput(DataType::kFloat32, r, 100003, 1);
      Bytes output(4 * input.size());
      CollectiveArgs args;
      args.kind = CollectiveKind::kAllgather;
      args.algorithm = &algorithm;
      args.input = input;
      args.output = absl::MakeSpan(output);
      args.output_block_bytes.assign(4, static_cast<int64_t>(input.size()));
      args.sequence = 1;
      EXPECT_EQ(RunCollective(context, args), absl::OkStatus());
      EXPECT_EQ(algorithm, flat ? "ring" : "slices_by_dimensions");
      for (size_t from = 0; from < 4; ++from) {
        const Bytes part(output.begin() + static_cast<std::ptrdiff_t>(from * input.size()),
                         output.begin() + static_cast<std::ptrdiff_t>((from + 1) * input.size()));
        EXPECT_TRUE(
            SameBytes(part, TestInput(DataType::kFloat32, static_cast<int32_t>(from), 100003, 1)));
      }
      all.arrive_and_wait();
    });
  }
}

// Whoever waits for a rank that dies names it, whether it is the one of its node that talks to
// other nodes or not, and nobody is done; the others hear of it from coordd.
TEST(HostBackendBetweenNodes, ARankThatDiesIsNamed) {
  const std::vector<NodeRun> kLayouts[] = {{{2, 2}}, {{1, 3}, {1, 1}}, {{1, 1}, {1, 2}}};
  for (const std::vector<NodeRun>& nodes : kLayouts) {
    const int32_t size = GroupLayout(Rank{0}, nodes).size();
    for (int32_t victim = 0; victim < size; ++victim) {
      for (const int64_t count : {int64_t{5}, int64_t{100003}}) {
        const MappedMemories shared(size);
        InProcessNetwork network(size);
        InMemoryStore store;
        std::barrier all(size);
        std::atomic<bool> noticed = false;
        RunRanks(size, [&](int32_t r) {
          const Bytes input = TestInput(DataType::kFloat32, r, count, 1);
          Bytes output(input.size());
          auto backend = std::make_unique<HostBackend>(
              std::make_unique<InProcessTransport>(network), HostBackendOptions(),
              std::make_unique<NodeArena>(shared.all()));
          ASSERT_EQ(backend->Connect(GroupLayout(Rank{r}, nodes), store,
                                     Clock::Real().Now() + kGroupHangLimit),
                    absl::OkStatus());
          all.arrive_and_wait();
          if (r == victim) {
            backend.reset();
            return all.arrive_and_wait();
          }
          BackendContext context{*backend, Rank{r}, size, all, [] {}};
          CollectiveArgs args = AllreduceArgs(DataType::kFloat32, ReduceOp::kSum, input, output);
          args.sequence = 1;
          std::optional<absl::Status> result;
          ASSERT_TRUE(
              backend->Launch(args, [&](absl::Status status) { result = std::move(status); }).ok());
          context.DriveUntil([&] { return result.has_value() || noticed.load(); });
          if (result.has_value()) {
            EXPECT_EQ(SuspectRank(*result), Rank{victim}) << *result;
            noticed = true;
          }
          backend->Abort();
          context.DriveUntil([&] { return result.has_value(); });
          EXPECT_FALSE(result->ok());
          all.arrive_and_wait();
        });
        EXPECT_TRUE(noticed.load());
      }
    }
  }
}

// Of two of whom one has left only that lane is over: the others finish what they do without it.
TEST(HostBackendBetweenNodes, ALaneOfTwoEndsAlone) {
  constexpr ProcessSetId kOneLeft{7}, kStay{8};
  InProcessNetwork network(3);
  InMemoryStore store;
  std::barrier all(3);
  RunRanks(3, [&](int32_t r) {
    auto backend = std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(network));
    ASSERT_EQ(backend->Connect(GroupLayout(Rank{r}, {{3, 1}}), store,
                               Clock::Real().Now() + kGroupHangLimit),
              absl::OkStatus());
    all.arrive_and_wait();
    if (r == 1) {
      backend.reset();
      return all.arrive_and_wait();
    }
    all.arrive_and_wait();
    BackendContext context{*backend, Rank{r}, 3, all, [] {}};
    const auto broadcast = [&](ProcessSetId group, int32_t root, int64_t sequence) {
      Bytes bytes(8, std::byte{static_cast<uint8_t>(r)});
      CollectiveArgs args;
      args.kind = CollectiveKind::kBroadcast;
      args.lane = LaneId{ToInt(group)};
      args.group = group;
      args.sequence = sequence;
      args.root = Rank{root};
      args.output = absl::MakeSpan(bytes);
      const absl::Status status = RunCollective(context, args);
      if (status.ok()) EXPECT_EQ(bytes[0], std::byte{2});
      return status;
    };
    ASSERT_EQ(backend->DefineGroup(kStay, {Rank{0}, Rank{2}}), absl::OkStatus());
    if (r == 0) {
      ASSERT_EQ(backend->DefineGroup(kOneLeft, {Rank{0}, Rank{1}}), absl::OkStatus());
      for (int64_t sequence : {1, 2})
        EXPECT_EQ(SuspectRank(broadcast(kOneLeft, 1, sequence)), Rank{1});
    }
    EXPECT_EQ(broadcast(kStay, 1, 1), absl::OkStatus());
    if (r == 0) {
      EXPECT_EQ(SuspectRank(broadcast(ProcessSetId{0}, 1, 1)), Rank{1});
      EXPECT_EQ(SuspectRank(broadcast(kStay, 0, 2)), Rank{1});
    }
  });
}

}  // namespace
}  // namespace coordd
