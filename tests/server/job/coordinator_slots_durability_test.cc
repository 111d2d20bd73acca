// Slots when coordd dies: another one knows none, and its members forget those of the one before,
// behind what they had missed of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/support/durability_fixture.h"
#include "tests/server/support/effects_text.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SlotsDurabilityTest : public CoordinatorDurabilityTest {
 protected:
  void SetUp() override {
    knows_slots_ = true;
    options_.slots = 8;
    options_.schedule_after_steps = 0;
    CoordinatorDurabilityTest::SetUp();
    Join(1, 2);
    const Effects formed = Store(Join(2, 2));
    for (const Outgoing& out : formed.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr || !deliver->message->has_membership()) continue;
      EXPECT_EQ(deliver->message->membership().slots(), 8);
    }
  }

  v1::WorkerMessage Said() const { return MessageOf(Epoch{epoch_}, Generation{1}); }
  Effects Submits(int64_t session, const std::string& tensor) {
    v1::WorkerMessage message = Said();
    ToProto(Gradient(tensor, {4}), message.mutable_tensors_ready()->add_tensors());
    return Do(SessionMessage{SessionId{session}, message});
  }
  Effects SubmitsSlot(int64_t session, int64_t slot) {
    v1::WorkerMessage message = Said();
    v1::CachedTensors& cached = *message.mutable_tensors_ready()->add_cached();
    cached.set_known(slot);
    cached.set_first_slot(slot);
    cached.set_bits("\x01");
    return Do(SessionMessage{SessionId{session}, message});
  }
  // Whom these say a plan, in their order.
  static std::vector<v1::CoordinatorMessage> Plans(const Effects& effects) {
    std::vector<v1::CoordinatorMessage> plans;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr && deliver->message->has_plan()) plans.push_back(*deliver->message);
    }
    return plans;
  }
  static std::vector<std::string> Texts(const Effects& effects) {
    std::vector<std::string> texts;
    for (const v1::CoordinatorMessage& plan : Plans(effects)) texts.push_back(ToText(plan));
    return texts;
  }
  static std::vector<int64_t> SlotsOfResumed(const Effects& effects) {
    std::vector<int64_t> slots;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr && deliver->message->has_resumed())
        slots.push_back(deliver->message->resumed().slots());
    }
    return slots;
  }
};

TEST_F(SlotsDurabilityTest, NumbersBeginAnewBehindARestart) {
  Submits(1, "w");
  const std::vector<v1::CoordinatorMessage> heard = Plans(Submits(2, "w"));
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_EQ(ToText(heard[0]), "plan 1{w} #1=w");
  const int64_t position = heard[0].position();
  Restart();
  Resume(11, 0, Launched(1, heard), "c0ffee", position);
  const Effects resumed = Resume(12, 1, Launched(1, heard), "c0ffee", position);
  EXPECT_THAT(SlotsOfResumed(resumed), ElementsAre(8, 8));
  EXPECT_THAT(Plans(resumed), IsEmpty());
  Submits(11, "v");
  EXPECT_THAT(Texts(Submits(12, "v")), ElementsAre("plan 2{v} #1=v"));
  SubmitsSlot(11, 1);
  EXPECT_THAT(Texts(SubmitsSlot(12, 1)), ElementsAre("plan 3{#1}"));
}

TEST_F(SlotsDurabilityTest, ASlotOfTheCoorddBeforeBreaksTheProtocol) {
  Submits(1, "w");
  const std::vector<v1::CoordinatorMessage> heard = Plans(Submits(2, "w"));
  ASSERT_EQ(heard.size(), 1u);
  Restart();
  Resume(11, 0, Launched(1, heard), "c0ffee", heard[0].position());
  Resume(12, 1, Launched(1, heard), "c0ffee", heard[0].position());
  EXPECT_THAT(Refusal(SubmitsSlot(11, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cannot know slot 1 of process set 0, of which 0 were given")));
}

TEST_F(SlotsDurabilityTest, WhatARankHasMissedIsToldInTheSlotsOfTheCoorddThatSaidIt) {
  Submits(1, "w");
  std::vector<v1::CoordinatorMessage> heard = Plans(Submits(2, "w"));
  SubmitsSlot(1, 1);
  const std::vector<v1::CoordinatorMessage> second = Plans(SubmitsSlot(2, 1));
  ASSERT_EQ(heard.size(), 1u);
  ASSERT_EQ(second.size(), 1u);
  const std::vector<v1::CoordinatorMessage> all = {heard[0], second[0]};
  Restart();
  Resume(11, 0, Launched(2, all), "c0ffee", second[0].position());
  const Effects resumed = Resume(12, 1, Launched(1, heard), "c0ffee", heard[0].position());
  EXPECT_THAT(Texts(resumed), ElementsAre("plan 2{#1}"));
  // To rank 1, before it is told to forget.
  std::vector<std::string> told;
  for (const Outgoing& out : resumed.outgoing) {
    const auto* deliver = std::get_if<Deliver>(&out);
    if (deliver == nullptr || deliver->to.front() != SessionId{12}) continue;
    if (deliver->message->has_plan()) told.emplace_back("plan");
    if (deliver->message->has_resumed()) told.emplace_back("resumed");
  }
  EXPECT_THAT(told, ElementsAre("plan", "resumed"));
}

TEST_F(SlotsDurabilityTest, AnotherCoorddMayHaveAnotherCapacity) {
  options_.slots = 3;
  Restart();
  Resume(11, 0);
  EXPECT_THAT(SlotsOfResumed(Resume(12, 1)), ElementsAre(3, 3));
}

TEST_F(SlotsDurabilityTest, AMemberThatComesBackWithoutSlotsEndsThemForAll) {
  Restart();
  Resume(11, 0);
  knows_slots_ = false;
  EXPECT_THAT(SlotsOfResumed(Resume(12, 1)), ElementsAre(0, 0));
  Submits(11, "w");
  EXPECT_THAT(Texts(Submits(12, "w")), ElementsAre("plan 1{w}"));
}

}  // namespace
}  // namespace coordd
