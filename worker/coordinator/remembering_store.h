// What this worker has put in the store, which does not outlive coordd.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// A decorator. Thread-safe. What was set or added through it, and not deleted through it since, is
// remembered, up to a bound; a worker that comes back to a coordd that was started again tells it
// (ResumeReport.stored). What one rank deletes and another has set is there again then. A value
// that was appended to is not remembered.
class RememberingStore final : public Store {
 public:
  // The size of keys and values that are remembered: what a rank publishes of itself is some
  // kilobytes. Keys beyond it are not remembered.
  static constexpr int64_t kMaxBytes = int64_t{1} << 20;

  explicit RememberingStore(Store& store) : store_(store) {}

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

  std::vector<v1::StoredKey> Stored() const;
  // Forgets the keys that coordd has deleted by itself, which begin with `prefix`. Empty: none.
  void Forget(absl::string_view prefix);

 private:
  struct Entry {
    bool is_sum = false;
    std::string value;
    int64_t sum = 0;
  };

  void Remember(absl::string_view key, std::string value);
  void Erase(absl::string_view prefix);
  void EraseKey(absl::string_view key);

  // Thread-safe by itself.
  Store& store_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
