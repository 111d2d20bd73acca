#include "server/generation/schedule_detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/server/support/builders.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Detector {
 public:
  explicit Detector(int64_t steps = 3, KeptNames::Hold kept = {})
      : detector_(steps, std::move(kept)) {}
  // Each argument is a batch.
  void Plan(const std::vector<std::vector<TensorSpec>>& batches) {
    for (const auto& batch : batches) {
      std::vector<const TensorSpec*> specs;
      for (const TensorSpec& spec : batch) specs.push_back(&spec);
      detector_.Planned(specs);
    }
  }
  void PlanNames(const std::vector<std::vector<std::string>>& batches) {
    std::vector<std::vector<TensorSpec>> specs;
    for (const auto& batch : batches) {
      specs.emplace_back();
      for (const std::string& name : batch) specs.back().push_back(Gradient(name, {4}));
    }
    Plan(specs);
  }
  std::vector<std::vector<std::string>> Pattern() const {
    std::vector<std::vector<std::string>> names;
    for (const auto& batch : detector_.Pattern()) {
      names.emplace_back();
      for (const TensorSpec& spec : batch) names.back().push_back(spec.name);
    }
    return names;
  }
  ScheduleDetector& operator*() { return detector_; }
  ScheduleDetector* operator->() { return &detector_; }

 private:
  ScheduleDetector detector_;
};

TEST(ScheduleDetectorTest, FindsAPatternAtTheEndOfItsThirdStep) {
  Detector detector;
  for (int step = 0; step < 2; ++step) {
    detector.PlanNames({{"a", "b"}});
    detector.PlanNames({{"c"}});
    EXPECT_FALSE(detector->complete());
  }
  detector.PlanNames({{"a"}});
  EXPECT_FALSE(detector->complete()) << "in the middle of the step";
  detector.PlanNames({{"b"}, {"c"}});
  ASSERT_TRUE(detector->complete());
  // As the last step was planned.
  EXPECT_THAT(detector.Pattern(),
              ElementsAre(ElementsAre("a"), ElementsAre("b"), ElementsAre("c")));
}

TEST(ScheduleDetectorTest, OneTensorAgainAndAgainIsAPattern) {
  Detector detector;
  detector.PlanNames({{"a"}});
  detector.PlanNames({{"a"}});
  EXPECT_FALSE(detector->complete());
  detector.PlanNames({{"a"}});
  EXPECT_TRUE(detector->complete());
}

TEST(ScheduleDetectorTest, TheOrderOfAStepDoesNotMatter) {
  Detector detector;
  detector.PlanNames({{"a"}, {"b"}});
  detector.PlanNames({{"b"}, {"a"}});
  detector.PlanNames({{"b"}, {"a"}});
  ASSERT_TRUE(detector->complete());
  EXPECT_THAT(detector.Pattern(), ElementsAre(ElementsAre("b"), ElementsAre("a")));
}

TEST(ScheduleDetectorTest, WhatComesNowAndThenIsNoPartOfThePattern) {
  Detector detector;
  for (int step = 0; step < 5; ++step) {
    detector.PlanNames({{"a", "b"}});
    if (step % 2 == 0) detector.PlanNames({{"metric"}});
  }
  detector.PlanNames({{"a", "b"}});
  ASSERT_TRUE(detector->complete());
  EXPECT_THAT(detector.Pattern(), ElementsAre(ElementsAre("a", "b")));
}

TEST(ScheduleDetectorTest, WhatComesTwiceInAStepIsNoPartOfThePattern) {
  Detector detector;
  for (int step = 0; step < 3; ++step) {
    detector.PlanNames({{"a", "b", "c"}});
    if (detector->complete()) break;
    detector.PlanNames({{"noname.0"}});
    detector.PlanNames({{"noname.0"}});
  }
  ASSERT_TRUE(detector->complete());
  EXPECT_THAT(detector.Pattern(), ElementsAre(ElementsAre("a", "b", "c")));
}

TEST(ScheduleDetectorTest, WhatComesAloneAgainAndAgainBecomesAPatternInTheEnd) {
  Detector detector;
  detector.PlanNames({{"a", "b", "c"}});
  detector.PlanNames({{"a", "b", "c"}});
  size_t times = 0;
  while (!detector->complete() && times < 2 * ScheduleDetector::kMaxFrequentInARow) {
    detector.PlanNames({{"validation"}});
    ++times;
  }
  ASSERT_TRUE(detector->complete());
  EXPECT_THAT(detector.Pattern(), ElementsAre(ElementsAre("validation")));
}

TEST(ScheduleDetectorTest, WhatChangesItsShapeIsNoPartOfThePattern) {
  Detector detector;
  for (int64_t step = 1; step <= 4; ++step)
    detector.Plan({{Gradient("a", {4})}, {Gradient("grows", {step})}});
  ASSERT_TRUE(detector->complete());
  EXPECT_THAT(detector.Pattern(), ElementsAre(ElementsAre("a")));
}

TEST(ScheduleDetectorTest, RowsOfAnAllgatherMayDiffer) {
  Detector detector;
  for (int64_t step = 1; step <= 3; ++step) {
    TensorSpec spec = Gradient("rows", {step, 5});
    spec.kind = CollectiveKind::kAllgather;
    spec.op = ReduceOp::kNone;
    detector.Plan({{spec}});
  }
  EXPECT_TRUE(detector->complete());
}

TEST(ScheduleDetectorTest, AGroupOfWhichAPartChangesIsNegotiated) {
  Detector detector;
  for (int64_t step = 1; step <= 5; ++step) {
    detector.Plan({{InGroup(Gradient("g0", {4}), "g", 2), InGroup(Gradient("g1", {step}), "g", 2)},
                   {Gradient("alone", {4})}});
  }
  ASSERT_TRUE(detector->complete());
  EXPECT_THAT(detector.Pattern(), ElementsAre(ElementsAre("alone")));
}

TEST(ScheduleDetectorTest, NamesThatNeverRepeatAreNoPattern) {
  Detector detector;
  for (size_t i = 0; i < 3 * ScheduleDetector::kMaxTensors; ++i) {
    detector.PlanNames({{absl::StrCat("call.", i)}});
    ASSERT_FALSE(detector->complete());
  }
}

TEST(ScheduleDetectorTest, NamesThatComeTwiceAndNeverAgainAreForgotten) {
  Detector detector;
  std::vector<std::vector<std::string>> step;
  for (int i = 0; i < 100; ++i) step.push_back({absl::StrCat("step.", i)});
  detector.PlanNames(step);
  detector.PlanNames({{"step.0"}});
  for (size_t i = 0; i < 3 * ScheduleDetector::kMaxTensors; ++i) {
    const std::string name = absl::StrCat("twice.", i);
    detector.PlanNames({{name}, {name}});
    ASSERT_LE(detector->known_tensors(), 2 * ScheduleDetector::kMaxTensors);
  }
}

TEST(ScheduleDetectorTest, WhatItKnowsIsCountedAndForgottenWhereThereIsNoRoom) {
  const int64_t cost = KeptNames::CostOf(Gradient("a", {4}));
  const auto budget = std::make_shared<ByteBudget>(4 * 3 * cost);  // three of them
  KeptNames names(budget);
  {
    Detector detector(3, KeptNames::Hold(names));
    for (int step = 0; step < 3; ++step) detector.PlanNames({{"a"}, {"b"}, {"c"}});
    EXPECT_TRUE(detector->complete());
    EXPECT_EQ(budget->names()->used(), 3 * cost);
    detector.PlanNames({{"d"}});  // a fourth
    EXPECT_FALSE(detector->complete());
    EXPECT_EQ(budget->names()->used(), 0);
    for (int step = 0; step < 3; ++step) detector.PlanNames({{"a"}, {"b"}});
    EXPECT_TRUE(detector->complete()) << "it begins from the beginning";
    // One that is called in another way costs as if it were new, and no more.
    detector.Plan({{Gradient("a", {4, 4})}});
    EXPECT_EQ(budget->names()->used(), 2 * cost + static_cast<int64_t>(sizeof(int64_t)));
    for (int step = 0; step < 3; ++step) detector.PlanNames({{"c"}});
    EXPECT_LE(budget->names()->used(), 3 * cost + static_cast<int64_t>(sizeof(int64_t)));
  }
  EXPECT_EQ(budget->names()->used(), 0);
  EXPECT_EQ(budget->used(), 0) << "it takes nothing from what is pending";
}

TEST(ScheduleDetectorTest, APatternThatWasOfNoUseHasToLastLonger) {
  Detector detector;
  auto steps_until_complete = [&] {
    for (int steps = 1; steps < 100; ++steps) {
      detector.PlanNames({{"a"}});
      if (detector->complete()) return steps;
    }
    return -1;
  };
  EXPECT_EQ(steps_until_complete(), 3);
  detector->Ended(/*was_of_use=*/false);
  EXPECT_EQ(steps_until_complete(), 6);
  detector->Ended(/*was_of_use=*/false);
  EXPECT_EQ(steps_until_complete(), 12);
  detector->Ended(/*was_of_use=*/true);
  EXPECT_EQ(steps_until_complete(), 3);
}

// It begins to look behind the first tensor of a step, whose others are planned together.
TEST(ScheduleDetectorTest, StepsCanBeCutWhereNothingIsPending) {
  Detector detector;
  detector.PlanNames({{"c"}});
  for (int step = 0; step < 3; ++step) {
    detector.PlanNames({{"a", "b", "c"}});
    EXPECT_FALSE(detector->complete());
    EXPECT_EQ(detector->missed(), step == 2) << step;
  }
  detector->Recut();
  EXPECT_FALSE(detector->complete());
  EXPECT_FALSE(detector->missed());
  detector.PlanNames({{"a", "b", "c"}});
  ASSERT_TRUE(detector->complete());
  EXPECT_THAT(detector.Pattern(), ElementsAre(ElementsAre("a", "b", "c")));
}

TEST(ScheduleDetectorTest, BeginsFromTheBeginningAfterReset) {
  Detector detector;
  detector.PlanNames({{"a"}});
  detector.PlanNames({{"a"}});
  detector->Reset();
  detector.PlanNames({{"a"}});
  EXPECT_FALSE(detector->complete());
}

}  // namespace
}  // namespace coordd
