// The way of an id, from the rank that mints it to the others.
#include "worker/gpu/nccl/communicator_maker.h"

#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/store_memory.h"
#include "tests/worker/support/closed_store.h"
#include "tests/worker/support/nccl_backend_fixture.h"

namespace coordd {
namespace {

// The store as one rank has it, and what that rank has written there.
class RecordingStore final : public Store {
 public:
  explicit RecordingStore(Store& store) : store_(store) {}
  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override {
    written[std::string(key)] = value;
    return store_.Set(key, std::move(value), deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    return store_.Get(key, deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override {
    return store_.Add(key, delta, deadline);
  }
  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override {
    deleted.emplace_back(prefix);
    return store_.DeletePrefix(prefix, deadline);
  }

  // Touched by the rank's "nccl-init", and by the test when that has ended.
  std::map<std::string, std::string> written;
  std::vector<std::string> deleted;

 private:
  Store& store_;
};

// Ranks that meet over stores that are looked at.
class CommunicatorMakerTest : public NcclBackendTest {
 protected:
  using Made = absl::StatusOr<std::shared_ptr<NcclCommunicator>>;

  // What each of `count` ranks has got; stores_ are theirs.
  std::vector<Made> Make(int32_t count, CommunicatorMakerOptions options) {
    std::atomic<uint32_t> gate = kGateOpen;
    NcclWatchdog watchdog(Clock::Real(), &gate);
    std::vector<std::unique_ptr<CommunicatorMaker>> makers;
    stores_.clear();
    for (int32_t rank = 0; rank < count; ++rank) {
      NcclPlace place;
      place.group = ProcessSetId{3};
      place.rank = rank;
      place.size = count;
      place.device = rank;
      stores_.push_back(std::make_unique<RecordingStore>(store_));
      makers.push_back(std::make_unique<CommunicatorMaker>(runtime_, place, *stores_.back(),
                                                           Clock::Real(), watchdog,
                                                           absl::InfiniteFuture(), options));
    }
    std::vector<Made> made;
    for (auto& maker : makers) {
      std::optional<Made> one;
      while (!(one = maker->Take()).has_value()) std::this_thread::yield();
      made.push_back(*std::move(one));
    }
    return made;
  }
  void MakeAll(int32_t count, CommunicatorMakerOptions options = {}) {
    for (const Made& made : Make(count, options)) EXPECT_TRUE(made.ok()) << made.status();
  }
  bool IsInStore(const std::string& key) {
    return !absl::IsDeadlineExceeded(store_.Get(key, absl::InfinitePast()).status());
  }

  InMemoryStore store_;
  std::vector<std::unique_ptr<RecordingStore>> stores_;
};

constexpr char kFirstId[] = "nccl/3/id/000000";

TEST_F(CommunicatorMakerTest, AnIdServesOnceAndLeavesTheStore) {
  MakeAll(2);
  const auto written = stores_[0]->written;
  ASSERT_EQ(written.count(kFirstId), 1u);
  EXPECT_EQ(written.at(kFirstId).size(), sizeof(NcclUniqueId));
  EXPECT_TRUE(stores_[1]->written.empty());
  EXPECT_FALSE(IsInStore(kFirstId));
  // Another communicator of the same set gets another one.
  MakeAll(2);
  EXPECT_NE(stores_[0]->written.at(kFirstId), written.at(kFirstId));
}

// Whoever mints an id serves its ranks: not rank 0 all of them.
TEST_F(CommunicatorMakerTest, TheFirstOfSoManyRanksMintsTheirIdAndForgetsIt) {
  SKIP_WHERE_NCCL_LACKS("ncclCommInitRankScalable");
  MakeAll(5, {.scalable_from = 5, .ranks_per_id = 2});
  for (size_t rank = 0; rank < stores_.size(); ++rank) {
    const auto& written = stores_[rank]->written;
    EXPECT_EQ(written.size(), rank % 2 == 0 ? 1u : 0u) << rank;
    if (rank % 2 != 0) {
      EXPECT_TRUE(stores_[rank]->deleted.empty());
      continue;
    }
    const std::string key = absl::StrCat("nccl/3/id/00000", rank / 2);
    ASSERT_EQ(written.count(key), 1u) << rank;
    EXPECT_EQ(written.at(key).size(), sizeof(NcclUniqueId));
    EXPECT_EQ(stores_[rank]->deleted.front(), key);
    EXPECT_FALSE(IsInStore(key));
  }
}

// Who mints the id, and who waits for it.
TEST_F(CommunicatorMakerTest, EndsWithTheGenerationWhereItsStoreIsClosed) {
  std::atomic<uint32_t> gate = kGateOpen;
  NcclWatchdog watchdog(Clock::Real(), &gate);
  for (const int32_t rank : {0, 1}) {
    ClosedStore closed;
    NcclPlace place;
    place.rank = place.device = rank;
    place.size = 2;
    CommunicatorMaker maker(runtime_, place, closed, Clock::Real(), watchdog,
                            absl::InfiniteFuture(), {});
    std::optional<Made> made;
    while (!(made = maker.Take()).has_value()) std::this_thread::yield();
    EXPECT_EQ(made->status().code(), absl::StatusCode::kAborted) << made->status();
  }
}

TEST_F(CommunicatorMakerTest, BelowTheThresholdThereIsOneId) {
  MakeAll(5, {.scalable_from = 6, .ranks_per_id = 2});
  EXPECT_EQ(stores_[0]->written.size(), 1u);
  EXPECT_TRUE(stores_[2]->written.empty());
}

TEST_F(CommunicatorMakerTest, AnOlderLibraryHasOneIdWhateverTheSize) {
  runtime_ = NcclRuntime::Open({{kNcclVariable, FakeOldNcclPath()}}, FakeCudaPath()).value();
  MakeAll(2, {.scalable_from = 2, .ranks_per_id = 1});
  EXPECT_EQ(stores_[0]->written.size(), 1u);
  EXPECT_TRUE(stores_[1]->written.empty());
}

// Which none of ours does; a store that gives an old value would make it so.
TEST_F(CommunicatorMakerTest, AnIdThatHasServedIsAnErrorThatSaysSo) {
  for (int32_t ids : {1, 2}) {  // of several, the second
    MakeAll(4, {.scalable_from = 4, .ranks_per_id = 4 / ids});
    SetFakeNccl("id_repeats", 1);
    for (const Made& made : Make(4, {.scalable_from = 4, .ranks_per_id = 4 / ids})) {
      ASSERT_FALSE(made.ok());
      EXPECT_TRUE(absl::IsUnavailable(made.status())) << made.status();
      EXPECT_THAT(std::string(made.status().message()),
                  testing::AllOf(testing::HasSubstr("an id that was used twice"),
                                 testing::HasSubstr("process set 3")));
    }
    EXPECT_EQ(TakeBrokenNcclRule(), "an id that was used twice");
    // A generation's store ends with it: whoever failed has not deleted its id.
    ASSERT_TRUE(store_.DeletePrefix("nccl", absl::InfiniteFuture()).ok());
    MakeAll(4);  // the next one is a new one
  }
}

}  // namespace
}  // namespace coordd
