// The conformance suite on each StateStore; of SQLite's also what is special about it.
#include "server/model/state_store.h"

#include <memory>

#include "server/store/state_store_memory.h"
#include "server/store/state_store_sqlite.h"
#include "tests/support/state_store_conformance.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

std::shared_ptr<StorePlace> InMemory() {
  auto memory = std::make_shared<StateMemory>();
  auto place = std::make_shared<StorePlace>();
  place->store = [memory](const StateStoreOptions& options) {
    return std::make_unique<MemoryStateStore>(memory, options);
  };
  return place;
}

std::shared_ptr<StorePlace> InSqlite() {
  auto directory = std::make_shared<TempDirectory>();
  auto place = std::make_shared<StorePlace>();
  place->store = [directory](const StateStoreOptions& options) {
    return std::make_unique<SqliteStateStore>(*directory / "deep/state", options);
  };
  return place;
}

INSTANTIATE_TEST_SUITE_P(Memory, StateStoreTest, testing::Values(&InMemory));
INSTANTIATE_TEST_SUITE_P(Sqlite, StateStoreTest, testing::Values(&InSqlite));

}  // namespace
}  // namespace coordd
