// The key-value seam: how data-plane addresses and NCCL ids travel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coordd {

// Thread-safe. InMemoryStore (tests), GrpcStore (a worker's, over store.proto), PrefixStore
// (decorator).
class Store {
 public:
  static constexpr int64_t kMaxKeyBytes = 256;
  static constexpr int64_t kMaxValueBytes =
      64 << 10;  // a UCX address is some 200 bytes, an NCCL id 128
  // Of one Look at coordd: more are asked for in several.
  static constexpr size_t kMaxLookKeys = 1024;
  static constexpr int64_t kMaxLookBytes = 256 << 10;

  virtual ~Store() = default;

  // INVALID_ARGUMENT: beyond its bound.
  static absl::Status CheckKey(absl::string_view key);
  static absl::Status CheckValue(absl::string_view key, size_t value_bytes);

  // Every call: FAILED_PRECONDITION when the key's generation is over, UNAVAILABLE when coordd
  // cannot be reached by `deadline`, INVALID_ARGUMENT for a key or value beyond its bound.

  virtual absl::Status Set(absl::string_view key, std::string value,
                           absl::Time deadline) = 0;  // overwrites
  // Waits for the key and returns its value. DEADLINE_EXCEEDED: nobody set it by `deadline`.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) = 0;
  // Adds to the number under the key, where a missing key counts as 0; returns the sum.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta,
                                      absl::Time deadline) = 0;
  virtual absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) = 0;

  // What programs use beyond that. UNIMPLEMENTED: a store of tests' has no such call.

  // Sets the key if its value is `expected`, nullopt: if it is missing. Returns the value that it
  // has then; nullopt: it is missing.
  virtual absl::StatusOr<std::optional<std::string>> CompareSet(absl::string_view key,
                                                                std::optional<std::string> expected,
                                                                std::string desired,
                                                                absl::Time deadline);
  // Returns the bytes that the key has then. A missing key counts as empty.
  virtual absl::StatusOr<int64_t> Append(absl::string_view key, std::string value,
                                         absl::Time deadline);
  // Whether it was there.
  virtual absl::StatusOr<bool> Delete(absl::string_view key, absl::Time deadline);
  // What the keys have now; nullopt: missing. Without `values` what is there is empty.
  virtual absl::StatusOr<std::vector<std::optional<std::string>>> Look(
      const std::vector<std::string>& keys, bool values, absl::Time deadline);
  // How many keys start with it.
  virtual absl::StatusOr<int64_t> Count(absl::string_view prefix, absl::Time deadline);
};

}  // namespace coordd
