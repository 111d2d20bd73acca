#include "common/protocol/store.h"

#include <memory>

#include "common/protocol/store_memory.h"
#include "tests/support/store_conformance.h"

namespace coordd {
namespace {

std::shared_ptr<Store> MakeInMemory() { return std::make_shared<InMemoryStore>(); }

// A PrefixStore together with the store that it stands on.
struct Prefixed {
  InMemoryStore inner;
  PrefixStore store{"g7/", inner};
};

std::shared_ptr<Store> MakePrefixed() {
  auto both = std::make_shared<Prefixed>();
  return std::shared_ptr<Store>(both, &both->store);
}

INSTANTIATE_TEST_SUITE_P(InMemory, StoreTest, ::testing::Values(StoreFactory(MakeInMemory)));
INSTANTIATE_TEST_SUITE_P(Prefix, StoreTest, ::testing::Values(StoreFactory(MakePrefixed)));

TEST(InMemoryStore, RefusesAnEmptyKey) {
  InMemoryStore store;
  EXPECT_THAT(store.Set("", "x", absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("0 bytes")));
}

TEST(PrefixStore, PutsThePrefixBeforeEveryKey) {
  Prefixed both;
  ASSERT_THAT(both.store.Set("a", "1", absl::InfiniteFuture()), IsOk());
  EXPECT_THAT(both.inner.Get("g7/a", absl::InfiniteFuture()), IsOkAndHolds("1"));
}

TEST(PrefixStore, LeavesOtherPrefixesAlone) {
  Prefixed both;
  ASSERT_THAT(both.inner.Set("g8/a", "other", absl::InfiniteFuture()), IsOk());
  ASSERT_THAT(both.store.Set("a", "ours", absl::InfiniteFuture()), IsOk());
  ASSERT_THAT(both.store.DeletePrefix("", absl::InfiniteFuture()), IsOk());
  EXPECT_THAT(both.inner.Get("g8/a", absl::InfiniteFuture()), IsOkAndHolds("other"));
  EXPECT_THAT(both.store.Get("a", absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::_));
}

}  // namespace
}  // namespace coordd
