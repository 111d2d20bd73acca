// Results that are wrong on purpose, under the check.
#include "worker/host/checking_backend.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"
#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/faulty_backend.h"
#include "tests/worker/support/in_process_transport.h"
#include "worker/host/host_backend.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckingBackendTest : public testing::Test {
 protected:
  BackendCase With(Fault fault) {
    const CheckingOptions options{.tolerance = 1e-9, .directory = directory_.path()};
    return {.name = "Faulty", .new_group = [fault, options](int32_t world_size) {
              auto network = std::make_shared<InProcessNetwork>(world_size);
              return [network, fault, options]() -> std::unique_ptr<CollectiveBackend> {
                auto good =
                    std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(*network));
                return std::make_unique<CheckingBackend>(
                    std::make_unique<FaultyBackend>(std::move(good), fault), options);
              };
            }};
  }
  // Runs it on three ranks; DATA_LOSS on the one with the fault, OK on the others.
  void ExpectFound(Fault fault, const std::string& what,
                   const std::function<CollectiveArgs(int32_t rank)>& args) {
    RunRanks<CollectiveBackend>(With(fault), 3, [&](BackendContext& context) {
      const int32_t rank = ToInt(context.rank);
      const absl::Status status = RunCollective(context, args(rank));
      if (rank != fault.rank) {
        EXPECT_THAT(status, IsOk());
        return;
      }
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                   AllOf(HasSubstr(absl::StrCat("rank ", rank, ": ", what)),
                                         HasSubstr("both vectors are in"))));
      dumped_ = std::string(status.message().substr(status.message().find("are in ") + 7));
    });
  }
  std::string Dumped() const {
    std::ifstream file(dumped_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  TempDirectory directory_;
  std::string dumped_;
};

constexpr size_t kCount = 150'000;  // more than one piece of a check
std::vector<float> Values(int32_t rank, size_t count = kCount) {
  return std::vector<float>(count, static_cast<float>(rank + 1));
}
template <typename T>
absl::Span<std::byte> AsBytes(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)};
}

TEST_F(CheckingBackendTest, FindsAWrongElementOfAnAllreduceInPlace) {
  std::vector<std::vector<float>> buffers = {Values(0), Values(1), Values(2)};
  // The third byte of element 100,000.
  const Fault fault{CollectiveKind::kAllreduce, 1, kCount * 4, 100'000 * 4 + 2};
  ExpectFound(fault, "allreduce (float32 sum) of tensor g, offset 400000: got 4.03125, expected 6",
              [&](int32_t r) {
                CollectiveArgs args;
                args.kind = CollectiveKind::kAllreduce;
                args.dtype = DataType::kFloat32;
                args.op = ReduceOp::kSum;
                args.output = AsBytes(buffers[static_cast<size_t>(r)]);
                args.input = args.output;
                args.element_at = [](int64_t offset) {
                  return absl::StrCat("tensor g, offset ", offset);
                };
                return args;
              });
  const std::string text = Dumped();
  EXPECT_THAT(text, HasSubstr("# rank 1: allreduce"));
  EXPECT_THAT(text, HasSubstr("\n99999\t6\t6\n"));
  EXPECT_THAT(text, HasSubstr("\n149999\t6\t6\n")) << "to the end";
  const std::string line = text.substr(text.find("\n100000\t"));
  EXPECT_THAT(line.substr(0, line.find('\n', 1)), HasSubstr("\t6\t*"));
}

TEST_F(CheckingBackendTest, FindsAWrongElementOfAReducescatter) {
  std::vector<std::vector<float>> inputs, outputs(3, std::vector<float>(kCount / 3));
  for (int32_t r = 0; r < 3; ++r) inputs.push_back(Values(r));
  const Fault fault{CollectiveKind::kReducescatter, 2, kCount / 3 * 4, 40'000 * 4 + 3};
  ExpectFound(fault, "reducescatter (float32 min) of element 40000: got", [&](int32_t r) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kReducescatter;
    args.dtype = DataType::kFloat32;
    args.op = ReduceOp::kMin;
    args.input = AsBytes(inputs[static_cast<size_t>(r)]);
    args.output = AsBytes(outputs[static_cast<size_t>(r)]);
    args.input_block_bytes.assign(3, kCount / 3 * 4);
    return args;
  });
}

TEST_F(CheckingBackendTest, FindsAWrongByteOfABroadcast) {
  std::vector<std::vector<int32_t>> buffers(3, std::vector<int32_t>(kCount, 5));
  const Fault fault{CollectiveKind::kBroadcast, 0, kCount * 4, 70'000 * 4};
  ExpectFound(fault, "broadcast (int32) of element 70000: got 68, expected 5", [&](int32_t r) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kBroadcast;
    args.dtype = DataType::kInt32;
    args.root = Rank{1};
    args.output = AsBytes(buffers[static_cast<size_t>(r)]);
    return args;
  });
}

// Unequal blocks; the wrong byte is in that of rank 2, whose length the others hear in the check.
TEST_F(CheckingBackendTest, FindsAWrongByteOfAnAllgather) {
  std::vector<std::vector<int32_t>> inputs, outputs(3, std::vector<int32_t>(100'300));
  for (size_t r = 0; r < 3; ++r)
    inputs.emplace_back(r == 0 ? 100 : r * 100'000 / 2, static_cast<int32_t>(r));
  inputs[2].resize(50'200, 2);
  const Fault fault{CollectiveKind::kAllgather, 0, 100'300 * 4, 50'100 * 4};
  ExpectFound(fault, "allgather (int32) of element 50100: got 67, expected 2", [&](int32_t r) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllgather;
    args.dtype = DataType::kInt32;
    args.input = AsBytes(inputs[static_cast<size_t>(r)]);
    args.output = AsBytes(outputs[static_cast<size_t>(r)]);
    for (const auto& input : inputs)
      args.output_block_bytes.push_back(static_cast<int64_t>(input.size() * 4));
    return args;
  });
}

TEST_F(CheckingBackendTest, FindsAWrongByteOfAnAlltoall) {
  // Rank r gives (r + 1) * 30,000 elements to each.
  std::vector<std::vector<int32_t>> inputs, outputs(3, std::vector<int32_t>(180'000));
  for (int32_t r = 0; r < 3; ++r) {
    inputs.emplace_back();
    for (int32_t to = 0; to < 3; ++to)
      inputs.back().insert(inputs.back().end(), static_cast<size_t>(r + 1) * 30'000, 10 * r + to);
  }
  const Fault fault{CollectiveKind::kAlltoall, 1, 180'000 * 4, 100'000 * 4};
  ExpectFound(fault, "alltoall (int32) of element 100000: got 84, expected 21", [&](int32_t r) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAlltoall;
    args.dtype = DataType::kInt32;
    args.input = AsBytes(inputs[static_cast<size_t>(r)]);
    args.output = AsBytes(outputs[static_cast<size_t>(r)]);
    args.input_block_bytes.assign(3, (r + 1) * 30'000 * 4);
    args.output_block_bytes = {30'000 * 4, 60'000 * 4, 90'000 * 4};
    return args;
  });
}

TEST_F(CheckingBackendTest, ARankWithAnotherToleranceIsNamed) {
  InMemoryStore store;
  ASSERT_THAT(store.Set("check-results/1", "0.01", absl::InfiniteFuture()), IsOk());
  auto network = std::make_shared<InProcessNetwork>(2);
  std::thread other = StartThread("other", [&] {
    InProcessTransport transport(*network);
    EXPECT_THAT(transport.Connect(GroupLayout::OneNode(Rank{1}, 2), store,
                                  Clock::Real().Now() + kGroupHangLimit),
                IsOk());
  });
  CheckingBackend backend(
      std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(*network)),
      {.tolerance = 1e-6, .directory = directory_.path()});
  EXPECT_THAT(backend.Connect(GroupLayout::OneNode(Rank{0}, 2), store,
                              Clock::Real().Now() + kGroupHangLimit),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 1 checks results with 0.01, expected 1e-06")));
  other.join();
}

}  // namespace
}  // namespace coordd
