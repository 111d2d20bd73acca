// The conformance suite on a real etcd, and what is special about it: leadership, its loss, its
// end, and an etcd that does not answer.
#include "server/store/state_store_etcd.h"

#include "coordd/v1/records.pb.h"
#include "tests/support/etcd_process.h"
#include "tests/support/state_store_conformance.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// One for all tests of this program; each has a prefix of its own.
struct SharedEtcd {
  std::string why;
  std::unique_ptr<EtcdProcess> process = EtcdProcess::Start(&why);
  static SharedEtcd& Get() {
    static SharedEtcd etcd;
    return etcd;
  }
};

EtcdStateOptions OptionsFor(const std::string& prefix) {
  return {.endpoints = {SharedEtcd::Get().process->address()},
          .prefix = prefix,
          .tls = {},
          .lease = absl::Seconds(1)};
}

std::shared_ptr<StorePlace> InEtcd() {
  static int places = 0;
  auto place = std::make_shared<StorePlace>();
  place->why = SharedEtcd::Get().why;
  if (SharedEtcd::Get().process == nullptr) return place;
  const std::string prefix = absl::StrCat("place", ++places, "/");
  place->store = [prefix](const StateStoreOptions& options) {
    return std::make_unique<EtcdStateStore>(OptionsFor(prefix), options, Clock::Real());
  };
  return place;
}

INSTANTIATE_TEST_SUITE_P(Etcd, StateStoreTest, testing::Values(&InEtcd));

class EtcdStateStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (SharedEtcd::Get().process == nullptr) GTEST_SKIP() << SharedEtcd::Get().why;
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    prefix_ = absl::StrCat(test->name(), "/");
    auto client = EtcdClient::Make({SharedEtcd::Get().process->address()}, {});
    ASSERT_THAT(client, IsOk());
    client_ = *std::move(client);
  }
  std::unique_ptr<EtcdStateStore> Make(bool adopt = false) {
    return std::make_unique<EtcdStateStore>(
        OptionsFor(prefix_),
        StateStoreOptions{.new_cluster_id = "c0ffee", .adopt = adopt, .owner = "pid 7 on host a"},
        Clock::Real());
  }
  etcdserverpb::KeyValue Read(const std::string& name) {
    etcdserverpb::RangeRequest request;
    request.set_key(prefix_ + name);
    const auto answer = client_->Range(request, absl::Seconds(5));
    EXPECT_THAT(answer, IsOk());
    return answer.ok() && answer->kvs_size() == 1 ? answer->kvs(0) : etcdserverpb::KeyValue();
  }
  void Put(const std::string& name, const std::string& value) {
    etcdserverpb::TxnRequest txn;
    auto* put = txn.add_success()->mutable_request_put();
    put->set_key(prefix_ + name);
    put->set_value(value);
    EXPECT_THAT(client_->Txn(txn, absl::Seconds(5)), IsOk());
  }
  // What happens to a leader that etcd has not heard from for its lease.
  void ExpireLeader() {
    ASSERT_THAT(client_->RevokeLease(Read("leader").lease(), absl::Seconds(5)), IsOk());
  }

  std::string prefix_;
  std::unique_ptr<EtcdClient> client_;
};

// Hears of a loss on whichever thread tells it.
struct Loss {
  BoundedQueue<absl::Status> said{4, Clock::Real()};
  std::function<void(absl::Status)> Callback() {
    return [this](absl::Status why) { said.TryPush(std::move(why)); };
  }
  std::string Await() {
    const auto taken = said.TakeAll(Clock::Real().Now() + absl::Minutes(1));
    return taken.empty() ? "nothing" : std::string(taken[0].message());
  }
};

TEST_F(EtcdStateStoreTest, AnOldLeaderChangesNothingOnceAnotherLeads) {
  Loss loss;  // outlives the store that tells it
  auto old = Make();
  ASSERT_THAT(old->Open(loss.Callback()), IsOk());
  ASSERT_THAT(old->Commit({{"job/a", "of the old one"}}), IsOk());
  ExpireLeader();
  auto next = Make();
  const auto state = next->Open([](const absl::Status&) {});
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->epoch, Epoch{2});
  EXPECT_EQ(state->records.at("job/a"), "of the old one");
  EXPECT_THAT(old->Commit({{"job/a", "too late"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("does not lead")));
  EXPECT_THAT(loss.Await(), HasSubstr("does not lead"));
  EXPECT_THAT(old->Commit({{"job/a", "still too late"}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("does not lead")));
  old.reset();  // its goodbye is refused, too
  EXPECT_THAT(next->Commit({{"job/b", "of the new one"}}), IsOk());
  EXPECT_EQ(Read("records/job/a").value(), "of the old one");
}

TEST_F(EtcdStateStoreTest, ALeaderWithoutALeaseHearsOfItByItself) {
  Loss loss;  // outlives the store that tells it
  auto store = Make();
  ASSERT_THAT(store->Open(loss.Callback()), IsOk());
  ExpireLeader();
  EXPECT_THAT(loss.Await(), AllOf(HasSubstr("does not lead"), HasSubstr("lease")));
}

TEST_F(EtcdStateStoreTest, KeepsItsLeaseForLongerThanOne) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status& why) { ADD_FAILURE() << why; }), IsOk());
  const int64_t lease = Read("leader").lease();
  BoundedQueue<int> nothing(1, Clock::Real());
  nothing.TakeAll(Clock::Real().Now() + absl::Milliseconds(2500));
  EXPECT_EQ(Read("leader").lease(), lease);
  EXPECT_THAT(store->Commit({{"job/a", "1"}}), IsOk());
}

TEST_F(EtcdStateStoreTest, AGoodbyeLeavesNothingToWaitFor) {
  {
    auto store = Make();
    ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  }
  EXPECT_EQ(Read("leader").key(), "");
  v1::EtcdMeta meta;
  ASSERT_TRUE(meta.ParseFromString(Read("meta").value()));
  EXPECT_TRUE(meta.resigned());
  EXPECT_EQ(meta.cluster_id(), "c0ffee");
}

TEST_F(EtcdStateStoreTest, AnEtcdThatDoesNotAnswerIsAnError) {
  Loss loss;  // outlives the store that tells it
  auto store = Make();
  ASSERT_THAT(store->Open(loss.Callback()), IsOk());
  SharedEtcd::Get().process->Pause();
  EXPECT_THAT(store->Commit({{"job/a", "1"}}),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  // By then the lease is over for us, whatever etcd will say.
  EXPECT_THAT(store->Commit({{"job/a", "1"}}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("has not been renewed")));
  SharedEtcd::Get().process->Continue();
}

TEST_F(EtcdStateStoreTest, RefusesAnEtcdThatWasRestoredFromASnapshot) {
  {
    auto store = Make();
    ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
    ASSERT_THAT(store->Commit({{"job/a", "1"}}), IsOk());
  }
  v1::EtcdMeta meta;
  ASSERT_TRUE(meta.ParseFromString(Read("meta").value()));
  meta.set_etcd_cluster(meta.etcd_cluster() + 1);
  Put("meta", meta.SerializeAsString());
  EXPECT_THAT(Make()->Open([](const absl::Status&) {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("snapshot"), HasSubstr("--adopt-state"))));
  const auto adopted = Make(/*adopt=*/true)->Open([](const absl::Status&) {});
  ASSERT_THAT(adopted, IsOk());
  EXPECT_TRUE(adopted->adopted);
  EXPECT_EQ(adopted->epoch, Epoch{1 + kAdoptionStride});
  EXPECT_EQ(adopted->records.size(), 1u);
}

TEST_F(EtcdStateStoreTest, RefusesANewerFormatAndWhatIsNotCoordds) {
  v1::EtcdMeta meta;
  meta.set_format(2);
  Put("meta", meta.SerializeAsString());
  EXPECT_THAT(Make()->Open([](const absl::Status&) {}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("format 2")));
  Put("meta", "\xff\xff");
  EXPECT_THAT(Make()->Open([](const absl::Status&) {}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("is not coordd's")));
}

TEST_F(EtcdStateStoreTest, ReadsMoreRecordsThanOnePage) {
  {
    auto store = Make();
    ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
    for (int block = 0; block < 13; ++block) {
      std::vector<StateWrite> writes;
      for (int i = 0; i < 90; ++i) writes.push_back({absl::StrCat("job/", block * 90 + i), "v"});
      ASSERT_THAT(store->Commit(writes), IsOk());
    }
  }
  const auto state = Make()->Open([](const absl::Status&) {});
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->records.size(), 13u * 90u);
}

TEST(EtcdStateStore, SaysWhichEndpointIsNotThere) {
  // A port that nobody listens on.
  EtcdStateStore store({.endpoints = {{"127.0.0.1", 1}}, .prefix = "coordd/", .tls = {}},
                       {.new_cluster_id = "c0ffee"}, Clock::Real());
  EXPECT_THAT(store.Open([](const absl::Status&) {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("127.0.0.1:1")));
}

}  // namespace
}  // namespace coordd
