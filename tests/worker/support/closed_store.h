// The store of a generation that is over, or will be.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "common/protocol/store.h"
#include "common/protocol/store_memory.h"

namespace coordd {

class ClosedStore final : public Store {
 public:
  static absl::Status Over() { return absl::FailedPreconditionError("generation 1 is over"); }

  absl::Status Set(absl::string_view, std::string, absl::Time) override { return Over(); }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Time) override { return Over(); }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t, absl::Time) override { return Over(); }
  absl::Status DeletePrefix(absl::string_view, absl::Time) override { return Over(); }
};

// One that is closed after so many calls from then on when that is set; negative: not yet. `left`
// outlives it.
class ClosingStore final : public Store {
 public:
  explicit ClosingStore(std::atomic<int>& left) : left_(left) {}

  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override {
    return IsClosed() ? ClosedStore::Over() : store_.Set(key, std::move(value), deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    if (IsClosed()) return ClosedStore::Over();
    return store_.Get(key, deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override {
    if (IsClosed()) return ClosedStore::Over();
    return store_.Add(key, delta, deadline);
  }
  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override {
    return IsClosed() ? ClosedStore::Over() : store_.DeletePrefix(prefix, deadline);
  }

 private:
  bool IsClosed() {
    if (left_ < 0) return false;
    if (left_ == 0) return true;
    --left_;
    return false;
  }

  InMemoryStore store_;
  std::atomic<int>& left_;
};

}  // namespace coordd
