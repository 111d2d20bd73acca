#include "server/store/state_store_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace coordd {

MemoryStateStore::MemoryStateStore(std::shared_ptr<StateMemory> memory, StateStoreOptions options)
    : memory_(std::move(memory)), options_(std::move(options)) {}

MemoryStateStore::~MemoryStateStore() {
  if (!open_) return;
  StateMemory* const memory = memory_.get();
  MutexLock lock(&memory->mu_);
  memory->owned_ = false;
}

absl::StatusOr<StoredState> MemoryStateStore::Open(std::function<void(absl::Status)> /*lost*/) {
  StateMemory* const memory = memory_.get();
  MutexLock lock(&memory->mu_);
  if (memory->owned_) {
    return absl::AlreadyExistsError(absl::StrCat("the state belongs to ", memory->owner_));
  }
  const std::string& expected = options_.expected_cluster_id;
  if (memory->cluster_id_.empty()) {
    memory->cluster_id_ = expected.empty() ? options_.new_cluster_id : expected;
  }
  if (!expected.empty() && expected != memory->cluster_id_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state is of cluster ", memory->cluster_id_, ", expected was cluster ", expected));
  }
  memory->owned_ = true;
  memory->owner_ = options_.owner;
  ++memory->last_epoch_.value;
  open_ = true;
  return StoredState{memory->cluster_id_, memory->last_epoch_, memory->records_};
}

absl::Status MemoryStateStore::Commit(absl::Span<const StateWrite> writes) {
  COORDD_CHECK(open_);
  COORDD_RETURN_IF_ERROR(CheckStateWrites(writes, /*bound_bytes=*/false));
  StateMemory* const memory = memory_.get();
  MutexLock lock(&memory->mu_);
  for (const StateWrite& write : writes) {
    if (write.value.has_value()) {
      memory->records_[write.key] = *write.value;
    } else {
      memory->records_.erase(write.key);
    }
  }
  return absl::OkStatus();
}

}  // namespace coordd
