// All ranks take one transport, whichever of them has which.
#include "worker/transport/agreed_transport.h"

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::HasSubstr;

// What a transport was asked for.
struct Asked {
  int connects = 0, sends = 0, receives = 0, turns = 0, aborts = 0;
};

class RecordedTransport final : public Transport {
 public:
  RecordedTransport(std::string name, Asked& asked, absl::Status connected = absl::OkStatus())
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
  Asked& asked_;
  const absl::Status connected_;
};

// A rank with its two transports.
struct Member {
  void Make(bool has_preferred, absl::Status connected = absl::OkStatus()) {
    std::unique_ptr<Transport> preferred;
    if (has_preferred)
      preferred = std::make_unique<RecordedTransport>("preferred", of_preferred, connected);
    transport.emplace(std::make_unique<RecordedTransport>("everywhere", of_everywhere),
                      std::move(preferred));
  }
  void Connect(Store& store, int32_t rank) {
    EXPECT_THAT(transport->Connect(GroupLayout(Rank{rank}, {{3, 1}}), store,
                                   absl::InfiniteFuture()),
                IsOk());
  }
  void Talk() {
    transport->Send(Rank{0}, {}, {}, [](const absl::Status&) {});
    transport->Receive(Rank{0}, {}, {}, [](const absl::Status&) {});
    transport->ReceiveInPlace(Rank{0}, {}, {}, [](const absl::StatusOr<const std::byte*>&) {});
  }

  Asked of_everywhere, of_preferred;
  std::optional<AgreedTransport> transport;
};

std::vector<std::string> Agreed(const std::vector<bool>& who_has) {
  InMemoryStore store;
  std::vector<Member> members(who_has.size());
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].Make(who_has[i]);
    members[i].Connect(store, static_cast<int32_t>(i));
  }
  std::vector<std::string> names;
  for (Member& member : members) {
    member.Talk();
    names.emplace_back(member.transport->name());
    const bool preferred = names.back() == "preferred";
    const Asked& chosen = preferred ? member.of_preferred : member.of_everywhere;
    const Asked& other = preferred ? member.of_everywhere : member.of_preferred;
    EXPECT_EQ(chosen.sends, 1);
    EXPECT_EQ(chosen.receives, 2);
    EXPECT_EQ(other.sends + other.receives, 0);
  }
  return names;
}

TEST(AgreedTransport, IsThePreferredOneIfAllRanksHaveIt) {
  EXPECT_THAT(Agreed({true, true, true}), testing::Each("preferred"));
  EXPECT_THAT(Agreed({true, true, false}), testing::Each("everywhere"));
  EXPECT_THAT(Agreed({false, true, true}), testing::Each("everywhere"));
  EXPECT_THAT(Agreed({false, false}), testing::Each("everywhere"));
}

TEST(AgreedTransport, DoesWithoutAPreferredOneThatCannotBeConnected) {
  InMemoryStore store;
  Member without, with;
  without.Make(true, absl::UnavailableError("no such device"));
  with.Make(true);
  testing::internal::CaptureStderr();
  without.Connect(store, 0);
  with.Connect(store, 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("all ranks use everywhere, since rank 0 has no preferred: no such device"));
  without.Talk();
  with.Talk();
  EXPECT_EQ(without.transport->name(), "everywhere");
  EXPECT_EQ(with.transport->name(), "everywhere");
}

TEST(AgreedTransport, AnswersOverBothUntilItIsKnown) {
  InMemoryStore store;
  Member member;
  member.Make(true);
  member.Connect(store, 0);
  EXPECT_EQ(member.transport->name(), "agreed");
  EXPECT_TRUE(member.transport->Progress());
  EXPECT_EQ(member.of_everywhere.turns, 1);
  EXPECT_EQ(member.of_preferred.turns, 1);
  EXPECT_EQ(member.transport->Descriptor(), -1);
  member.Talk();
  EXPECT_TRUE(member.transport->Progress());
  EXPECT_EQ(member.of_everywhere.turns, 1);
  EXPECT_EQ(member.of_preferred.turns, 2);
  EXPECT_EQ(member.transport->Descriptor(), 7);
  member.transport->Abort();
  EXPECT_EQ(member.of_everywhere.aborts + member.of_preferred.aborts, 2);
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

TEST(AgreedTransport, EndsWhatIsBegunWhereNobodySaysWhichItIs) {
  LostStore store;
  Member member;
  member.Make(true);
  member.Connect(store, 0);
  std::vector<absl::Status> ended;
  const auto done = [&](absl::Status status) { ended.push_back(std::move(status)); };
  member.transport->Send(Rank{1}, {}, {}, done);
  member.transport->Receive(Rank{1}, {}, {}, done);
  member.transport->ReceiveInPlace(
      Rank{1}, {}, {},
      [&](absl::StatusOr<const std::byte*> taken) { ended.push_back(taken.status()); });
  EXPECT_TRUE(ended.empty());
  EXPECT_TRUE(member.transport->Progress());
  ASSERT_EQ(ended.size(), 3u);
  for (const absl::Status& status : ended) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("which transport all ranks use"));
  }
}

}  // namespace
}  // namespace coordd
