#include "server/door/shared_budget.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/door/frame_guard.h"

namespace coordd {
namespace {

const absl::Time kBegin = absl::UnixEpoch();

TEST(SharedBudget, IsSpentAndComesAgainWithTime) {
  SharedBudget budget(10, 2, kBegin);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.Spend(1, kBegin));
  EXPECT_FALSE(budget.Spend(1, kBegin));
  EXPECT_FALSE(budget.IsFull(kBegin));
  EXPECT_TRUE(budget.Spend(2, kBegin + absl::Seconds(1)));
  EXPECT_FALSE(budget.Spend(1, kBegin + absl::Seconds(1)));
  EXPECT_TRUE(budget.IsFull(kBegin + absl::Minutes(1)));
}

TEST(SharedBudgets, WhoComesAgainHasNoMoreThanBefore) {
  SharedBudgets budgets;
  EXPECT_TRUE(budgets.Of("worker/train7", kBegin)->Spend(SharedBudgets::kBurst, kBegin));
  EXPECT_FALSE(budgets.Of("worker/train7", kBegin)->Spend(1, kBegin));
  EXPECT_TRUE(budgets.Of("worker/train8", kBegin)->Spend(1, kBegin));
}

TEST(SharedBudgets, ThoseWhoAreGoneAreForgottenAndOthersAreNot) {
  SharedBudgets budgets;
  const auto held = budgets.Of("held", kBegin);
  budgets.Of("spent", kBegin)->Spend(SharedBudgets::kBurst, kBegin);
  for (int i = 0; i < 20000; ++i) budgets.Of(absl::StrCat("10.0.0.", i), kBegin);
  EXPECT_LT(budgets.size(), 10000u);
  EXPECT_EQ(budgets.Of("held", kBegin), held);
  EXPECT_FALSE(budgets.Of("spent", kBegin)->Spend(1, kBegin));
}

// A call that ends with its headers, HTTP/2's preface and settings before it.
TEST(SharedBudgets, BoundTheCallsOfAllConnectionsOfAClient) {
  const auto calls = std::make_shared<SharedBudget>(2, 0, kBegin);
  const std::string hello("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  const std::string call("\0\0\0\1\5\0\0\0\1", 9);
  for (int i = 0; i < 2; ++i) {
    FrameGuard guard(FrameBounds(), kBegin, calls);
    EXPECT_TRUE(guard.Take(hello + call, kBegin).ok());
  }
  FrameGuard third(FrameBounds(), kBegin, calls);
  EXPECT_TRUE(third.Take(hello, kBegin).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(third.Take(call, kBegin)));
}

}  // namespace
}  // namespace coordd
