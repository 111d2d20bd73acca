// The way of an id, from the rank that mints it to the others.
#include "worker/nccl/communicator_maker.h"

#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/nccl/nccl_backend_fixture.h"

namespace coordd {
namespace {

// The store as it is, and what was written to it.
class RecordingStore final : public Store {
 public:
  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override {
    {
      std::lock_guard lock(mu_);
      written_[std::string(key)] = value;
    }
    return store_.Set(key, std::move(value), deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    return store_.Get(key, deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override {
    return store_.Add(key, delta, deadline);
  }
  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override {
    return store_.DeletePrefix(prefix, deadline);
  }
  std::map<std::string, std::string> written() {
    std::lock_guard lock(mu_);
    return written_;
  }

 private:
  InMemoryStore store_;
  std::mutex mu_;
  std::map<std::string, std::string> written_;
};

// Two ranks that meet over a store that is looked at.
class CommunicatorMakerTest : public NcclBackendTest {
 protected:
  void MakeTwo(CommunicatorMakerOptions options) {
    std::atomic<uint32_t> gate = kGateOpen;
    NcclWatchdog watchdog(Clock::Real(), &gate);
    std::vector<std::unique_ptr<CommunicatorMaker>> makers;
    for (int32_t rank = 0; rank < 2; ++rank) {
      NcclPlace place;
      place.group = ProcessSetId{3};
      place.rank = rank;
      place.size = 2;
      place.device = rank;
      makers.push_back(std::make_unique<CommunicatorMaker>(
          runtime_, place, store_, Clock::Real(), watchdog, absl::InfiniteFuture(), options));
    }
    for (auto& maker : makers) {
      while (true) {
        const auto made = maker->Take();
        if (!made.has_value()) {
          std::this_thread::yield();
          continue;
        }
        EXPECT_TRUE(made->ok()) << made->status();
        break;
      }
    }
  }

  RecordingStore store_;
};

TEST_F(CommunicatorMakerTest, AnIdServesOnceAndLeavesTheStore) {
  MakeTwo({});
  const auto written = store_.written();
  ASSERT_EQ(written.count("nccl/3/id"), 1u);
  EXPECT_EQ(written.at("nccl/3/id").size(), sizeof(NcclUniqueId));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_.Get("nccl/3/id", absl::InfinitePast()).status()));
  // Another communicator of the same set gets another one.
  MakeTwo({});
  EXPECT_NE(store_.written().at("nccl/3/id"), written.at("nccl/3/id"));
}

TEST_F(CommunicatorMakerTest, LargeCommunicatorsHaveSeveralIds) {
  MakeTwo({.scalable_from = 2, .ranks_per_id = 1});
  EXPECT_EQ(store_.written().at("nccl/3/id").size(), 2 * sizeof(NcclUniqueId));
}

TEST_F(CommunicatorMakerTest, AnOlderLibraryHasOneIdWhateverTheSize) {
  runtime_ = NcclRuntime::Open({{kNcclVariable, FakeOldNcclPath()}}, FakeCudaPath()).value();
  MakeTwo({.scalable_from = 2, .ranks_per_id = 1});
  EXPECT_EQ(store_.written().at("nccl/3/id").size(), sizeof(NcclUniqueId));
}

}  // namespace
}  // namespace coordd
