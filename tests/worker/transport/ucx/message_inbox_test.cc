#include "worker/transport/ucx/message_inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <vector>

namespace coordd {
namespace {

uint64_t TagOf(int32_t sender, uint64_t name) {
  return static_cast<uint64_t>(sender) << MessageLabel::kTagBits | name;
}

KeptMessage Kept(const MessageLabel& label) {
  KeptMessage message;
  message.label = label;
  message.bytes = AlignedBuffer(8);
  return message;
}

TEST(MessageInbox, HandsAMessageToTheReceiveThatWaitsForIt) {
  MessageInbox inbox;
  WaitingReceive receive{TagOf(3, 7)};
  inbox.Wait(receive);
  EXPECT_EQ(inbox.Arrived({TagOf(3, 8), 0, 8}), nullptr);
  inbox.Keep(Kept({TagOf(3, 8), 0, 8}));
  EXPECT_EQ(inbox.Arrived({TagOf(3, 7), 1, 8}), &receive);
  EXPECT_FALSE(inbox.Take(TagOf(3, 7)).has_value());
  const std::optional<KeptMessage> kept = inbox.Take(TagOf(3, 8));
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->label.sender(), Rank{3});
  EXPECT_FALSE(inbox.Take(TagOf(3, 8)).has_value());
}

TEST(MessageInbox, AReceiveThatWasWithdrawnGetsNothing) {
  MessageInbox inbox;
  WaitingReceive first{TagOf(0, 1)}, second{TagOf(0, 1)}, third{TagOf(0, 1)};
  for (WaitingReceive* receive : {&first, &second, &third}) inbox.Wait(*receive);
  inbox.Withdraw(second);
  inbox.Withdraw(third);
  EXPECT_EQ(inbox.Arrived({TagOf(0, 1), 0, 8}), &first);
  EXPECT_EQ(inbox.Arrived({TagOf(0, 1), 1, 8}), nullptr);
  inbox.Wait(second);  // its place is free again
  inbox.Withdraw(second);
}

TEST(MessageInbox, TakeAllLeavesNoMessageAndAllReceives) {
  MessageInbox inbox;
  WaitingReceive receive{TagOf(1, 5)};
  inbox.Wait(receive);
  for (const uint64_t number : {0, 1, 3}) {  // of the last one an earlier one is missing
    const MessageLabel label{TagOf(1, 6), number, 8};
    EXPECT_EQ(inbox.Arrived(label), nullptr);
    inbox.Keep(Kept(label));
  }
  EXPECT_EQ(inbox.TakeAll().size(), 3u);
  EXPECT_FALSE(inbox.Take(TagOf(1, 6)).has_value());
  inbox.Withdraw(receive);
}

TEST(MessageInbox, GivesMemoryBackThatIsLargeEnough) {
  MessageInbox inbox;
  AlignedBuffer buffer = inbox.NewBuffer(1000);
  const std::byte* const bytes = buffer.data();
  inbox.GiveBack(std::move(buffer));
  inbox.GiveBack(AlignedBuffer());  // nothing was kept
  AlignedBuffer larger = inbox.NewBuffer(1001);
  ASSERT_NE(larger.data(), nullptr);
  EXPECT_GE(larger.size_bytes(), 1001);
  EXPECT_EQ(inbox.NewBuffer(10).data(), bytes);
}

// Messages overtake each other, receives come before and behind them: those of one tag match in the
// order in which both were made, as a queue for each tag says.
TEST(MessageInbox, MatchesInOrderWhateverOvertakesWhat) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    constexpr int32_t kSenders = 3;
    constexpr uint64_t kNames = 4, kMessages = 40;
    std::vector<MessageLabel> under_way;
    std::map<uint64_t, std::deque<uint64_t>> sent;  // by tag: numbers
    for (int32_t sender = 0; sender < kSenders; ++sender) {
      for (uint64_t number = 0; number < kMessages; ++number) {
        const uint64_t tag = TagOf(sender, random() % kNames);
        under_way.push_back({tag, number, 8});
        sent[tag].push_back(number);
      }
    }
    // Neighbours change places: a network does not keep a message back for ever.
    for (size_t i = 0; i + 1 < under_way.size(); ++i)
      std::swap(under_way[i], under_way[i + random() % std::min<size_t>(4, under_way.size() - i)]);
    std::deque<uint64_t> wanted;  // tags, a receive for each message
    for (const MessageLabel& label : under_way) wanted.push_back(label.tag);
    std::shuffle(wanted.begin(), wanted.end(), random);

    MessageInbox inbox;
    std::deque<WaitingReceive> receives;
    std::map<const WaitingReceive*, uint64_t> got;  // the number of its message
    std::map<uint64_t, std::vector<const WaitingReceive*>> made;
    size_t arrived = 0;
    while (arrived < under_way.size() || !wanted.empty()) {
      if (!wanted.empty() && (arrived == under_way.size() || random() % 2 == 0)) {
        WaitingReceive& receive = receives.emplace_back(WaitingReceive{wanted.front()});
        wanted.pop_front();
        made[receive.expected_tag].push_back(&receive);
        if (const std::optional<KeptMessage> message = inbox.Take(receive.expected_tag)) {
          got[&receive] = message->label.number;
        } else {
          inbox.Wait(receive);
        }
        continue;
      }
      const MessageLabel label = under_way[arrived++];
      if (const WaitingReceive* const receive = inbox.Arrived(label)) {
        got[receive] = label.number;
      } else {
        inbox.Keep(Kept(label));
      }
      while (const std::optional<MessageInbox::Match> match = inbox.NextMatch(label.sender()))
        got[match->receive] = match->message.label.number;
    }
    for (const auto& [tag, in_order] : made) {
      for (size_t i = 0; i < in_order.size(); ++i) {
        ASSERT_TRUE(got.contains(in_order[i])) << "seed " << seed;
        EXPECT_EQ(got[in_order[i]], sent[tag][i]) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace coordd
