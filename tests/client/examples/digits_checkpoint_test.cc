#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "client/examples/digits/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

using ::testing::HasSubstr;

class DigitsCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "digitsXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path() const { return directory_ + "/checkpoint"; }
  std::string LoadError() const {
    try {
      LoadCheckpoint(path());
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  std::string directory_;
};

Checkpoint Example() {
  Checkpoint checkpoint{4, Parameters(3), Parameters(3)};
  Initialise(9, checkpoint.parameters);
  Initialise(10, checkpoint.velocity);
  return checkpoint;
}

TEST_F(DigitsCheckpoint, IsReadAsItWasWritten) {
  const Checkpoint written = Example();
  SaveCheckpoint(path(), written);
  const auto read = LoadCheckpoint(path());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->epochs_done, 4);
  EXPECT_EQ(read->parameters.hidden.values, written.parameters.hidden.values);
  EXPECT_EQ(read->parameters.output.values, written.parameters.output.values);
  EXPECT_EQ(read->velocity.output.values, written.velocity.output.values);
}

TEST_F(DigitsCheckpoint, ReplacesTheOldOneAndLeavesNothingBeside) {
  SaveCheckpoint(path(), Example());
  Checkpoint next = Example();
  next.epochs_done = 5;
  SaveCheckpoint(path(), next);
  EXPECT_EQ(LoadCheckpoint(path())->epochs_done, 5);
  const auto begin = std::filesystem::directory_iterator(directory_);
  EXPECT_EQ(std::distance(begin, std::filesystem::directory_iterator()), 1);
}

TEST_F(DigitsCheckpoint, AMissingFileIsNoCheckpoint) {
  EXPECT_FALSE(LoadCheckpoint(path()).has_value());
}

TEST_F(DigitsCheckpoint, RefusesWhatIsNotOneByName) {
  std::ofstream(path()) << "something else";
  EXPECT_THAT(LoadError(), HasSubstr(path() + ": not a checkpoint"));
  SaveCheckpoint(path(), Example());
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  EXPECT_THAT(LoadError(), HasSubstr("shorter"));
  SaveCheckpoint(path(), Example());
  std::ofstream(path(), std::ios::app) << "x";
  EXPECT_THAT(LoadError(), HasSubstr("longer"));
}

TEST_F(DigitsCheckpoint, SaysWhyAFileCannotBeWritten) {
  try {
    SaveCheckpoint(directory_ + "/missing/checkpoint", Example());
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot be created"));
  }
}

TEST(MaxWeightDifference, FindsTheLargest) {
  const Parameters a = Example().parameters;
  Parameters b = a;
  EXPECT_EQ(MaxWeightDifference(a, b), 0);
  b.hidden.values[5] += 0.25f;
  b.output.values[1] -= 0.5f;
  EXPECT_NEAR(MaxWeightDifference(a, b), 0.5, 1e-6);
}

TEST(MaxWeightDifference, ANumberThatIsNoneIsNotSmall) {
  const Parameters a = Example().parameters;
  Parameters b = a;
  b.hidden.values[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(MaxWeightDifference(a, b)));
}

TEST(MaxWeightDifference, RefusesNetworksOfDifferentSizes) {
  EXPECT_THROW(MaxWeightDifference(Parameters(3), Parameters(4)), std::runtime_error);
}

}  // namespace
}  // namespace digits
