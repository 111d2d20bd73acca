// State in a directory of this machine: `--store sqlite:DIRECTORY`. (io)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "server/model/state_store.h"
#include "server/store/sqlite_database.h"
#include "server/store/state_directory.h"

namespace coordd {

// The directory has `state.db` (SQLite, with its log beside it) and `lock`, both for this user
// only. Each record carries a digest of itself, the file says which file it is, and the lock says
// how far it had come: a flipped bit, a copy, an older copy and a lost end are noticed and refused.
class SqliteStateStore final : public StateStore {
 public:
  // `vfs` is for tests that make the disk fail; empty: SQLite's own.
  SqliteStateStore(std::string directory, StateStoreOptions options, std::string vfs = {});
  ~SqliteStateStore() override;

  absl::StatusOr<StoredState> Open(std::function<void(absl::Status)> lost) override;
  absl::Status Commit(absl::Span<const StateWrite> writes) override;
  std::string name() const override { return "sqlite:" + path_; }

 private:
  using Records = std::map<std::string, std::string>;

  std::string file() const { return path_ + "/state.db"; }
  // Makes an empty file where there is none. False: there is one already.
  absl::StatusOr<bool> MakeFile();
  absl::StatusOr<Records> ReadRecords();
  // What speaks against using the file, in one sentence; empty when nothing does.
  absl::StatusOr<std::string> Suspicion(const Records& records);
  absl::StatusOr<StoredState> Take(Records records, bool made, bool adopted);
  absl::Status Write(absl::Span<const StateWrite> writes);
  absl::Status Broken(absl::Status why);

  const std::string path_;
  const StateStoreOptions options_;
  const std::string vfs_;

  std::optional<StateDirectory> directory_;
  std::optional<SqliteDatabase> database_;
  std::string cluster_id_;
  int64_t commits_ = 0;
  int64_t checkpointed_ = 0;  // value of commits_ then
  absl::Status broken_;       // not OK: nothing more is taken
};

}  // namespace coordd
