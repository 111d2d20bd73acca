// A tensor beyond the range of 32-bit sizes, in place, between two ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/reference.h"
#include "worker/base/aligned_buffer.h"
#include "worker/host/host_backend.h"
#include "worker/transport/shm/shm_transport.h"

namespace coordd {
namespace {

// Odd, so that the halves differ, and beyond 2^31 by more than a segment.
constexpr int64_t kSizeBytes = (int64_t{2} << 30) + (3 << 20) + 7;

// A pattern that differs from block to block and between ranks.
constexpr int64_t kBlockBytes = int64_t{64} << 10;

uint8_t ValueAt(int32_t rank, int64_t index) {
  return static_cast<uint8_t>(index * 7 + index / kBlockBytes * 13 + rank * 5);
}

// One block of the pattern, or of the sum of the patterns of two ranks.
Bytes Block(int64_t begin, int64_t size, bool sum, int32_t rank) {
  Bytes block(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int value =
        sum ? ValueAt(0, begin + i) + ValueAt(1, begin + i) : ValueAt(rank, begin + i);
    block[static_cast<size_t>(i)] = static_cast<std::byte>(value);
  }
  return block;
}

enum class Memory { kMessages, kMappedByNobody, kMapped };

class LargeTensor : public testing::TestWithParam<Memory> {};

TEST_P(LargeTensor, TwoRanksSumMoreThanTwoGiBOfBytesInPlace) {
  const Memory memory = GetParam();
  const BackendCase host{
      .name = "Host", .new_group = [memory](int32_t) {
        return [memory]() -> std::unique_ptr<CollectiveBackend> {
          std::unique_ptr<NodeArena> arena;
          if (memory != Memory::kMessages)
            arena = std::make_unique<NodeArena>(NodeArenaOptions{2 * kSizeBytes});
          return std::make_unique<HostBackend>(std::make_unique<ShmTransport>(),
                                               HostBackendOptions{}, std::move(arena));
        };
      }};
  RunRanks<CollectiveBackend>(host, 2, [memory](BackendContext& context) {
    const AlignedBuffer own(memory == Memory::kMapped ? 1 : kSizeBytes);
    absl::Span<std::byte> buffer = own.span();
    if (memory == Memory::kMapped) {
      const auto allocated = context.object.AllocateFusionBuffer(kSizeBytes);
      ASSERT_TRUE(allocated.ok()) << allocated.status();
      buffer = *allocated;
    }
    ASSERT_NE(buffer.data(), nullptr);
    for (int64_t at = 0; at < kSizeBytes; at += kBlockBytes) {
      const Bytes block =
          Block(at, std::min(kBlockBytes, kSizeBytes - at), false, ToInt(context.rank));
      std::memcpy(buffer.data() + at, block.data(), block.size());
    }
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kUint8;
    args.op = ReduceOp::kSum;
    args.sequence = 1;
    args.input = buffer;
    args.output = buffer;
    std::optional<absl::Status> result;
    ASSERT_TRUE(context.object.Launch(args, [&](absl::Status s) { result = std::move(s); }).ok());
    ASSERT_TRUE(context.DriveUntil([&] { return result.has_value(); }));
    ASSERT_EQ(*result, absl::OkStatus());
    for (int64_t at = 0; at < kSizeBytes; at += kBlockBytes) {
      const Bytes block = Block(at, std::min(kBlockBytes, kSizeBytes - at), true, 0);
      ASSERT_EQ(std::memcmp(buffer.data() + at, block.data(), block.size()), 0) << "byte " << at;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Host, LargeTensor,
                         testing::Values(Memory::kMessages, Memory::kMappedByNobody,
                                         Memory::kMapped));

}  // namespace
}  // namespace coordd
