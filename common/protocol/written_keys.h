// What one worker has written into its job's store, for a coordd that was started again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// For ResumeReport.
struct WrittenReport {
  std::vector<v1::StoredKey> stored;
  std::vector<v1::DeletedKey> deleted;
};

// PURE. Not thread-safe. Takes down what coordd has answered: of each key the value that the
// worker's last write of it has made, or that it has none, with the write's version. Answers may be
// taken down in another order than that of their versions. Without a version (of a coordd that
// tells none) the order in which they are taken down counts, and deleted keys are just forgotten.
class WrittenKeys {
 public:
  using Version = std::optional<StoreVersion>;
  // Of the values and their keys: what a rank publishes of itself is some kilobytes. For a value
  // beyond it is noted that it is lost.
  static constexpr int64_t kMaxBytes = int64_t{1} << 20;
  // Of the keys without a value. Beyond it the oldest go: older values of other workers may then be
  // there again.
  static constexpr int64_t kMaxGoneBytes = int64_t{256} << 10;
  static constexpr int64_t kEntryBytes = 32;  // what an entry counts beside its strings

  void Set(absl::string_view key, std::string value, Version version);
  void Add(absl::string_view key, int64_t delta, int64_t sum, Version version);
  // `value`: the whole.
  void Append(absl::string_view key, std::string value, Version version);
  void Delete(absl::string_view key, Version version);
  void DeletePrefix(absl::string_view prefix, Version version);
  // As if they had never been there: coordd has deleted them by itself. Empty: none.
  void Forget(absl::string_view prefix);

  WrittenReport Report() const;
  int64_t bytes() const { return bytes_; }
  int64_t gone_bytes() const { return gone_bytes_; }

 private:
  struct Value {
    Version version;
    std::string value;
    std::optional<int64_t> sum = {};  // of what was added, while nothing else was done
  };
  struct Gone {
    StoreVersion version;
    bool forgotten = false;
  };
  // The last write of the key is later than this one.
  bool IsLate(const std::string& key, const Version& version) const;
  void Put(const std::string& key, Value value);
  void PutGone(const std::string& key, const Gone& gone);
  void Erase(const std::string& key);
  void EraseAll(absl::string_view prefix, Version before);
  void DropOldest();

  std::map<std::string, Value> values_;
  std::map<std::string, Gone> gone_;  // no key is in both
  std::map<std::string, StoreVersion> prefixes_;
  // Of both: the key, and whether it is a prefix.
  std::map<StoreVersion, std::pair<std::string, bool>> gone_by_age_;
  int64_t bytes_ = 0, gone_bytes_ = 0;
};

}  // namespace coordd
