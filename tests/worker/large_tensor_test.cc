// A tensor beyond the range of 32-bit sizes, in place, between two ranks.
#include <gtest/gtest.h>

#include <optional>

#include "tests/worker/collective_backend_conformance.h"
#include "tests/worker/reference.h"
#include "worker/aligned_buffer.h"
#include "worker/host_backend.h"
#include "worker/shm_transport.h"

namespace coordd {
namespace {

// Odd, so that the halves differ, and beyond 2^31 by more than a segment.
constexpr int64_t kSizeBytes = (int64_t{2} << 30) + (3 << 20) + 7;

std::byte ValueAt(int32_t rank, int64_t index) {
  return static_cast<std::byte>((index * 7 + (index >> 20) * 13 + rank * 5) & 0x7f);
}

TEST(LargeTensor, TwoRanksSumMoreThanTwoGiBOfBytesInPlace) {
  const BackendCase shm{.name = "Shm", .new_group = [](int32_t) {
                          return []() -> std::unique_ptr<CollectiveBackend> {
                            return std::make_unique<HostBackend>(std::make_unique<ShmTransport>());
                          };
                        }};
  RunRanks<CollectiveBackend>(shm, 2, [](BackendContext& context) {
    const AlignedBuffer buffer(kSizeBytes);
    ASSERT_NE(buffer.data(), nullptr);
    for (int64_t i = 0; i < kSizeBytes; ++i) buffer.data()[i] = ValueAt(ToInt(context.rank), i);
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kUint8;
    args.op = ReduceOp::kSum;
    args.sequence = 1;
    args.input = buffer.span();
    args.output = buffer.span();
    std::optional<absl::Status> result;
    ASSERT_TRUE(context.object.Launch(args, [&](absl::Status s) { result = std::move(s); }).ok());
    ASSERT_TRUE(context.DriveUntil([&] { return result.has_value(); }));
    ASSERT_EQ(*result, absl::OkStatus());
    int64_t wrong = 0;
    for (int64_t i = 0; i < kSizeBytes; ++i) {
      const int expected =
          std::to_integer<int>(ValueAt(0, i)) + std::to_integer<int>(ValueAt(1, i));
      wrong += std::to_integer<int>(buffer.data()[i]) != (expected & 0xff);
    }
    EXPECT_EQ(wrong, 0);
  });
}

}  // namespace
}  // namespace coordd
