#include "common/base/memory_limit.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace coordd {
namespace {

absl::Duration Taken(const std::function<void()>& what) {
  const absl::Time start = absl::Now();
  what();
  return absl::Now() - start;
}

// What a store's keys, and the calls that brought them, leave: malloc walked over it for each of
// sixteen calls, with its locks held.
TEST(MemoryGuardTest, WhereThereIsRoomNobodyWaitsForWhatWasFreedBefore) {
  constexpr size_t kPieces = 400'000, kPieceBytes = 1200;  // larger than what a thread keeps
  std::vector<std::unique_ptr<char[]>> pieces(kPieces);
  for (auto& piece : pieces) piece = std::make_unique<char[]>(kPieceBytes);
  for (size_t i = 0; i < kPieces; i += 2) pieces[i].reset();
  const absl::Duration walk = Taken([] { EXPECT_GT(mallinfo2().ordblks, 0u); });
  MemoryGuard guard;
  constexpr int kLooks = 100;
  const absl::Duration asked = Taken([&guard] {
    for (int i = 0; i < kLooks; ++i) EXPECT_TRUE(guard.Room(1 << 20).ok());
  });
  EXPECT_LT(asked, kLooks / 2 * walk);
}

}  // namespace
}  // namespace coordd
