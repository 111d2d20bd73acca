#include "common/base/memory_limit.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

int asked = 0;

// For each sixteen calls malloc walked over what a store's keys had left: others waited for it.
TEST(MemoryGuardTest, WhereThereIsRoomMallocIsNotAsked) {
  MemoryGuard guard([] {
    ++asked;
    return size_t{0};
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(guard.Room(1 << 20).ok());
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace coordd
