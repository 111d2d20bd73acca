// Stores that need no coordd: one in this process's memory, and one that prefixes another's keys.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"

namespace coordd {

// Thread-safe: ranks that are threads of one process meet here.
class InMemoryStore final : public Store {
 public:
  explicit InMemoryStore(Clock& clock = Clock::Real()) : clock_(clock) {}

  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override;
  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override;
  absl::StatusOr<std::optional<std::string>> CompareSet(absl::string_view key,
                                                        std::optional<std::string> expected,
                                                        std::string desired,
                                                        absl::Time deadline) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, std::string value,
                                 absl::Time deadline) override;
  absl::StatusOr<bool> Delete(absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                               bool values,
                                                               absl::Time deadline) override;
  absl::StatusOr<int64_t> Count(absl::string_view prefix, absl::Time deadline) override;

 private:
  Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
};

// `store` outlives it.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, Store& store) : prefix_(std::move(prefix)), store_(store) {}

  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override;
  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override;
  absl::StatusOr<std::optional<std::string>> CompareSet(absl::string_view key,
                                                        std::optional<std::string> expected,
                                                        std::string desired,
                                                        absl::Time deadline) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, std::string value,
                                 absl::Time deadline) override;
  absl::StatusOr<bool> Delete(absl::string_view key, absl::Time deadline) override;
  absl::StatusOr<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                               bool values,
                                                               absl::Time deadline) override;
  absl::StatusOr<int64_t> Count(absl::string_view prefix, absl::Time deadline) override;

 private:
  const std::string prefix_;
  Store& store_;
};

}  // namespace coordd
