// Each pair of ranks takes one transport, whichever of the two has which.
#include "worker/transport/agreed_transport.h"

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::HasSubstr;

// What a transport was asked for.
struct AskedFor {
  int connects = 0, sends = 0, receives = 0, turns = 0, aborts = 0;
};

class RecordedTransport final : public Transport {
 public:
  RecordedTransport(std::string name, AskedFor& asked, absl::Status connected = absl::OkStatus())
      : name_(std::move(name)), asked_(asked), connected_(std::move(connected)) {}

  absl::string_view name() const override { return name_; }
  absl::Status Connect(const GroupLayout&, Store&, absl::Time) override {
    ++asked_.connects;
    return connected_;
  }
  void Send(Rank, Tag, absl::Span<const std::byte>, Done) override { ++asked_.sends; }
  void Receive(Rank, Tag, absl::Span<std::byte>, Done) override { ++asked_.receives; }
  void ReceiveInPlace(Rank, Tag, absl::Span<std::byte>, Taken) override { ++asked_.receives; }
  bool Progress() override { return ++asked_.turns > 0; }
  int Descriptor() override { return 7; }
  void Abort() override { ++asked_.aborts; }

 private:
  const std::string name_;
  AskedFor& asked_;
  const absl::Status connected_;
};

// A rank with its two transports.
struct AgreedRank {
  void Make(bool has_preferred, absl::Status connected = absl::OkStatus()) {
    std::unique_ptr<Transport> preferred;
    if (has_preferred)
      preferred = std::make_unique<RecordedTransport>("preferred", of_preferred, connected);
    transport.emplace(std::make_unique<RecordedTransport>("everywhere", of_everywhere),
                      std::move(preferred), AgreedTransport::Told{edges, "slow", "fast"});
  }
  void Connect(Store& store, int32_t rank) {
    EXPECT_THAT(
        transport->Connect(GroupLayout(Rank{rank}, {{4, 1}}), store, absl::InfiniteFuture()),
        IsOk());
  }
  void Talk(int32_t to) {
    transport->Send(Rank{to}, {}, {}, [](const absl::Status&) {});
    transport->Receive(Rank{to}, {}, {}, [](const absl::Status&) {});
    transport->ReceiveInPlace(Rank{to}, {}, {}, [](const absl::StatusOr<const std::byte*>&) {});
  }

  std::string Edges() const {
    int64_t told = 0;
    std::string text;
    const std::optional<v1::HostEdges> found = edges->EdgesBeyond(&told);
    for (const v1::EdgeGroup& group : found->between_nodes())
      text += group.over() + " " + absl::StrJoin(group.first_ranks(), ",") + ";";
    return text;
  }

  AskedFor of_everywhere, of_preferred;
  std::shared_ptr<EdgeReport> edges = std::make_shared<EdgeReport>();
  std::optional<AgreedTransport> transport;
};

TEST(AgreedTransport, IsThePreferredOneWhereBothRanksHaveIt) {
  const std::vector<bool> has = {true, false, true};
  InMemoryStore store;
  std::vector<AgreedRank> members(has.size());
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].Make(has[i]);
    members[i].Connect(store, static_cast<int32_t>(i));
  }
  for (size_t from = 0; from < members.size(); ++from) {
    for (size_t to = 0; to < members.size(); ++to) {
      if (from == to) continue;
      AgreedRank& member = members[from];
      member.of_everywhere = member.of_preferred = {};
      member.Talk(static_cast<int32_t>(to));
      const bool preferred = has[from] && has[to];
      const AskedFor& chosen = preferred ? member.of_preferred : member.of_everywhere;
      const AskedFor& other = preferred ? member.of_everywhere : member.of_preferred;
      EXPECT_EQ(chosen.sends, 1) << from << " to " << to;
      EXPECT_EQ(chosen.receives, 2);
      EXPECT_EQ(other.sends + other.receives, 0);
    }
  }
}

TEST(AgreedTransport, ReportsEachRankOnceWithWhatItIsReachedOver) {
  InMemoryStore store;
  std::vector<AgreedRank> members(4);
  for (const int32_t rank : {0, 1, 2, 3}) {
    members[static_cast<size_t>(rank)].Make(rank < 2);
    members[static_cast<size_t>(rank)].Connect(store, rank);
  }
  members[0].Talk(3);
  EXPECT_EQ(members[0].Edges(), "slow 3;");
  for (const int32_t rank : {1, 2, 3, 1}) members[0].Talk(rank);
  EXPECT_EQ(members[0].Edges(), "fast 1;slow 2,3;");
  for (const int32_t rank : {0, 3, 0}) members[2].Talk(rank);
  EXPECT_EQ(members[2].Edges(), "slow 0,3;");
}

// Who is not connected yet is nobody's concern: groups begin as soon as their members are.
TEST(AgreedTransport, IsNotChosenForARankBeforeThatIsAsked) {
  InMemoryStore store;
  std::vector<AgreedRank> members(3);
  for (const int32_t rank : {0, 1, 2}) {
    members[static_cast<size_t>(rank)].Make(rank != 2);
    members[static_cast<size_t>(rank)].Connect(store, rank);
    if (rank == 1) members[0].Talk(1);
  }
  EXPECT_EQ(members[0].of_preferred.sends, 1);
  members[0].Talk(2);
  EXPECT_EQ(members[0].of_everywhere.sends, 1);
}

TEST(AgreedTransport, DoesWithoutAPreferredOneThatCannotBeConnected) {
  InMemoryStore store;
  AgreedRank without, with;
  without.Make(true, absl::UnavailableError("no such device"));
  with.Make(true);
  testing::internal::CaptureStderr();
  without.Connect(store, 0);
  with.Connect(store, 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("rank 0 uses everywhere between nodes, and not preferred: no such device"));
  without.Talk(1);
  with.Talk(0);
  EXPECT_EQ(without.of_everywhere.sends, 1);
  EXPECT_EQ(with.of_everywhere.sends, 1);
}

TEST(AgreedTransport, DrivesBothAndHasADescriptorIfThereIsOne) {
  InMemoryStore store;
  AgreedRank both, one;
  both.Make(true);
  both.Connect(store, 0);
  one.Make(false);
  one.Connect(store, 1);
  for (AgreedRank* const member : {&both, &one}) {
    EXPECT_TRUE(member->transport->Progress());
    member->transport->Abort();
    EXPECT_EQ(member->of_everywhere.turns, 1);
    EXPECT_EQ(member->of_everywhere.aborts, 1);
  }
  EXPECT_EQ(both.of_preferred.turns, 1);
  EXPECT_EQ(both.of_preferred.aborts, 1);
  EXPECT_EQ(both.transport->Descriptor(), -1);
  EXPECT_EQ(one.transport->Descriptor(), 7);
}

// A store that has gone when it is asked.
class LostStore final : public Store {
 public:
  absl::Status Set(absl::string_view, std::string, absl::Time) override { return lost_; }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Time) override { return lost_; }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t, absl::Time) override { return lost_; }
  absl::Status DeletePrefix(absl::string_view, absl::Time) override { return lost_; }
  absl::StatusOr<std::optional<std::string>> CompareSet(absl::string_view,
                                                        std::optional<std::string>, std::string,
                                                        absl::Time) override {
    return lost_;
  }
  absl::StatusOr<int64_t> Append(absl::string_view, std::string, absl::Time) override {
    return lost_;
  }

 private:
  const absl::Status lost_ = absl::UnavailableError("coordd has gone");
};

TEST(AgreedTransport, EndsWhatIsBegunWhereNobodySaysWhatARankHas) {
  LostStore store;
  AgreedRank member;
  member.Make(true);
  member.Connect(store, 0);
  std::vector<absl::Status> ended;
  const auto done = [&](absl::Status status) { ended.push_back(std::move(status)); };
  member.transport->Send(Rank{1}, {}, {}, done);
  member.transport->Receive(Rank{1}, {}, {}, done);
  member.transport->ReceiveInPlace(Rank{1}, {}, {}, [&](absl::StatusOr<const std::byte*> taken) {
    ended.push_back(taken.status());
  });
  EXPECT_TRUE(ended.empty());
  EXPECT_TRUE(member.transport->Progress());
  ASSERT_EQ(ended.size(), 3u);
  for (const absl::Status& status : ended) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("over what rank 1 is reached: coordd has gone"));
  }
}

}  // namespace
}  // namespace coordd
