#include "client/coordctl/memory_bound.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "client/coordctl/exit_code.h"
#include "tests/support/sanitized.h"

namespace coordd {
namespace {

// Until there is no more.
void Fill(size_t bytes) {
  constexpr size_t kPiece = 1 << 20;
  std::vector<std::unique_ptr<char[]>> pieces;
  for (size_t taken = 0; taken < bytes; taken += kPiece) {
    pieces.emplace_back(new char[kPiece]);
    std::memset(pieces.back().get(), 1, kPiece);
  }
}

TEST(MemoryBound, EndsWithASentenceBeyondIt) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer's memory is more than any bound";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        BoundMemory(64 << 20);
        Fill(128 << 20);
      },
      testing::ExitedWithCode(kFailed), "coordctl: there is not enough memory for what coordd has");
}

}  // namespace
}  // namespace coordd
