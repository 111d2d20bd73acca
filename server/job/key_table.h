// Keys with their values in order, of which a whole range can be taken at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coordd {

// PURE. Not thread-safe.
//
// The keys are in parts, each a map of a few hundred with its bytes added up. So a prefix is
// counted and taken a part at a time, and only the two parts at its ends key by key: a million
// keys were half a second of a turn.
class KeyTable {
 public:
  using Values = std::map<std::string, std::string, std::less<>>;
  struct Sum {
    int64_t keys = 0, bytes = 0;  // of keys and values together
  };

  static constexpr size_t kMostInPart = 512;

  KeyTable();

  const Sum& sum() const { return sum_; }
  // Null: it is not there.
  const std::string* Find(absl::string_view key) const;
  // What was written; valid until the next change.
  const std::string& Put(const std::string& key, std::string value);
  bool Erase(absl::string_view key);

  Sum SumOf(absl::string_view prefix) const;
  // Those that begin with the prefix are another table's from now on.
  KeyTable Take(absl::string_view prefix);
  // Frees the first ones, at most so many; how many.
  int64_t FreeFirst(int64_t most);

  void ForEach(
      const std::function<void(const std::string& key, const std::string& value)>& see) const;
  // How many keys were moved from part to part, one by one.
  int64_t moved() const { return moved_; }
  absl::Status CheckConsistency() const;

 private:
  struct Part {
    Values values;
    int64_t bytes = 0;
    Sum sum() const { return {static_cast<int64_t>(values.size()), bytes}; }
  };
  // By a key that none of it is before, and none of an earlier part behind. The first one is "".
  using Parts = std::map<std::string, Part, std::less<>>;

  Parts::const_iterator PartOf(absl::string_view key) const;
  Parts::iterator PartOf(absl::string_view key);
  Parts::iterator SplitAt(const std::string& key);
  void Move(Values::iterator from, Part& part, Part& into);
  void MergeWithNext(Parts::iterator at);
  void Settle(absl::string_view key);
  void Change(Part& part, Sum by);

  Parts parts_;
  Sum sum_;
  int64_t moved_ = 0;
};

}  // namespace coordd
