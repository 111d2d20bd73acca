// Registrations of a rank: one goes behind the other.
#include "worker/gpu/plane/device_registrations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/support/status_matchers.h"
#include "worker/gpu/plane/window_claim.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

constexpr ProcessSetId kSet{0};

class DeviceRegistrationsTest : public ::testing::Test {
 protected:
  DeviceRegistrations::Region Region(size_t index) { return {&memory_[64 * index], 64}; }
  int64_t BeginWith(size_t index) {
    const int64_t number = registrations_.Begin(kSet);
    EXPECT_THAT(registrations_.Give(kSet, number, Region(index)), IsOk());
    return number;
  }

  std::array<std::byte, 1024> memory_;
  DeviceRegistrations registrations_;
};

TEST_F(DeviceRegistrationsTest, OneHasItsTurnWhenAllThatBeganBeforeAreOver) {
  const int64_t first = BeginWith(0), second = BeginWith(1);
  EXPECT_FALSE(registrations_.TakeTurn(kSet, second).has_value());
  EXPECT_EQ(registrations_.TakeTurn(kSet, first), DigestOf({}));
  EXPECT_FALSE(registrations_.TakeTurn(kSet, second).has_value());
  registrations_.End(kSet, first);
  // The first was given up.
  EXPECT_EQ(registrations_.TakeTurn(kSet, second), DigestOf({}));
  const std::string name = registrations_.Expect(kSet, second, /*meeting=*/7, /*as_window=*/true);
  EXPECT_THAT(name, HasSubstr("/7/"));
  EXPECT_NE(registrations_.Expect(kSet, second, 7, true), name);
}

TEST_F(DeviceRegistrationsTest, WhatIsRefusedHoldsUpNobody) {
  registrations_.End(kSet, registrations_.Begin(kSet));
  BeginWith(0);
  const int64_t second = registrations_.Begin(kSet);
  EXPECT_THAT(registrations_.Give(kSet, second, Region(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("overlaps with 64 bytes")));
  registrations_.End(kSet, second);
  EXPECT_THAT(registrations_.Give(kSet, registrations_.Begin(kSet), Region(1)), IsOk());
}

TEST_F(DeviceRegistrationsTest, OfASetThereAreNoMoreThanItMayHave) {
  std::vector<std::byte> memory(DeviceRegistrations::kRegionsMax + 1);
  for (size_t i = 0; i < memory.size(); ++i) {
    const absl::Status given =
        registrations_.Give(kSet, registrations_.Begin(kSet), {&memory[i], 1});
    EXPECT_EQ(given.code(), i < DeviceRegistrations::kRegionsMax
                                ? absl::StatusCode::kOk
                                : absl::StatusCode::kResourceExhausted);
  }
}

TEST_F(DeviceRegistrationsTest, WhatIsNotRegisteredIsNotRemoved) {
  EXPECT_THAT(registrations_.Remove(kSet, memory_.data()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not registered")));
  const int64_t first = BeginWith(0);
  EXPECT_THAT(registrations_.Remove(kSet, memory_.data()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is under way")));
  registrations_.End(kSet, first);
  EXPECT_THAT(registrations_.Remove(kSet, memory_.data()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not registered")));
}

}  // namespace
}  // namespace coordd
