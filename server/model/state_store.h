// The seam behind which coordd's state outlives coordd: a small set of records, written by one
// coordd at a time. Implementations: state_store_memory, state_store_sqlite, state_store_etcd.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"

namespace coordd {

struct StateWrite {
  std::string key;                   // 1 to 256 bytes
  std::optional<std::string> value;  // absent: the record goes
};

// What a coordd finds when it becomes the writer.
struct StoredState {
  std::string cluster_id;                      // of the state, since it was made; never empty
  Epoch epoch;                                 // of this opening: larger than any before it
  std::map<std::string, std::string> records;  // by key
  bool adopted = false;                        // its end may be missing: see StateStoreOptions
};

struct StateStoreOptions {
  // Names state that is made now; SecretHex(16) of main's. REQUIRES: not empty.
  std::string new_cluster_id = {};
  // What the state's id must be; empty: any. State that is made now gets this id.
  std::string expected_cluster_id = {};
  // Takes over state that was copied, restored or has lost its end: the epoch grows by
  // kAdoptionStride, and the caller adds as much to every generation, so that what the missing part
  // has said stays in the past. Nothing where nothing is wrong.
  bool adopt = false;
  // Who uses the state, for whoever is refused and for operators: "pid 4711 on host a1, gRPC
  // 10.0.0.1:29650".
  std::string owner = {};
};

// How much numbers grow when state is adopted whose end may be missing: more than anybody starts a
// coordd, or forms generations, between two backups.
inline constexpr int64_t kAdoptionStride = 1'000'000;

// Open is called once, before anything else; then Commit by one thread. The destructor gives the
// state up, so that another can open it at once.
class StateStore {
 public:
  static constexpr size_t kMaxKeyBytes = 256;
  // The writes of one Commit. etcd takes 128 operations and 1.5 MiB, of which its own framing needs
  // some.
  static constexpr size_t kMaxWrites = 100;
  static constexpr size_t kMaxCommitBytes = size_t{1} << 20;

  virtual ~StateStore() = default;

  // Becomes the only writer, with a new epoch that is durable when this returns. `lost` is called
  // at most once, from any thread and never from within Commit, when another may have become the
  // writer; nothing may be called on the store from within it.
  //   ALREADY_EXISTS       another coordd has it; the sentence says who
  //   FAILED_PRECONDITION  it is there and must not be used: foreign, restored, of a newer format,
  //                        on a network file system, where this process may not write
  //   DATA_LOSS            it is there and damaged
  //   UNAVAILABLE          it cannot be reached, read or written now
  virtual absl::StatusOr<StoredState> Open(std::function<void(absl::Status)> lost) = 0;

  // All of `writes` or none of them, durable when it returns OK. After any error nothing or all of
  // it may be there: what matters is written again under another number, never assumed.
  //   INVALID_ARGUMENT     beyond a bound; nothing changed
  //   RESOURCE_EXHAUSTED   no room
  //   UNAVAILABLE          cannot be written now
  //   any other            this object takes nothing more: every later Commit returns the same
  virtual absl::Status Commit(absl::Span<const StateWrite> writes) = 0;

  // The store's name: "memory", "sqlite:/var/lib/coordd", "etcd:10.0.0.1:2379,10.0.0.2:2379".
  virtual std::string name() const = 0;
};

// Whether a later Commit may succeed after this one's error.
inline bool IsPassing(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) ||
         absl::IsInvalidArgument(status);
}

// The bounds that every implementation checks first. INVALID_ARGUMENT names what is beyond one.
absl::Status CheckStateWrites(absl::Span<const StateWrite> writes, bool bound_bytes);

}  // namespace coordd
