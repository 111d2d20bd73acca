// State that ends with the process: `--store memory`, and the other side of tests.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "server/model/state_store.h"

namespace coordd {

// What several MemoryStateStores stand on, as several coordds stand on one disk. Thread-safe.
class StateMemory {
 public:
  // The epoch of the first opening is `first_epoch`.
  explicit StateMemory(Epoch first_epoch = Epoch{1}) : last_epoch_{ToInt(first_epoch) - 1} {}

 private:
  friend class MemoryStateStore;
  Mutex mu_;
  std::string owner_ ABSL_GUARDED_BY(mu_);
  bool owned_ ABSL_GUARDED_BY(mu_) = false;
  std::string cluster_id_ ABSL_GUARDED_BY(mu_);
  Epoch last_epoch_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> records_ ABSL_GUARDED_BY(mu_);
};

class MemoryStateStore final : public StateStore {
 public:
  MemoryStateStore(std::shared_ptr<StateMemory> memory, StateStoreOptions options);
  ~MemoryStateStore() override;

  absl::StatusOr<StoredState> Open(std::function<void(absl::Status)> lost) override;
  absl::Status Commit(absl::Span<const StateWrite> writes) override;
  std::string name() const override { return "memory"; }

 private:
  const std::shared_ptr<StateMemory> memory_;
  const StateStoreOptions options_;
  bool open_ = false;
};

}  // namespace coordd
