// One SQLite database file, as far as coordd's state needs it. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;

namespace coordd {

// One thread at a time. Statuses name the file and what SQLite and the system said:
//   RESOURCE_EXHAUSTED   the disk is full
//   UNAVAILABLE          it could not be written or opened, and nothing is worse than before
//   DATA_LOSS            the file is damaged, or a sync failed: what is on the disk is not known
class SqliteDatabase {
 public:
  // Opens `path`, which exists. Write-ahead log, a full sync at each commit, no other process.
  // `vfs`: SQLite's name of the file system layer; empty: its own. DATA_LOSS also for what its own
  // check of the whole file finds.
  static absl::StatusOr<SqliteDatabase> Open(const std::string& path, const std::string& vfs);
  ~SqliteDatabase();
  SqliteDatabase(SqliteDatabase&& other) noexcept;
  SqliteDatabase& operator=(SqliteDatabase&& other) = delete;

  absl::Status Execute(const char* sql);

  // Runs one statement with `first` and `second` and `third` bound to its parameters, as blobs.
  absl::Status Run(const char* sql, absl::string_view first, absl::string_view second = {},
                   absl::string_view third = {});

  // Runs a statement of three columns without parameters, and calls for each of its rows.
  absl::Status ForEachRow(
      const char* sql,
      const std::function<void(absl::string_view, absl::string_view, absl::string_view)>& row);

  // Moves the log's contents into the file and empties the log.
  absl::Status Checkpoint();

  // Leaves the log as it is at the end: after a failed sync nothing may be trusted to be written
  // by another try.
  void LeaveLog();

 private:
  SqliteDatabase(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}
  absl::Status Error(int code, absl::string_view doing) const;
  absl::Status Prepare();

  std::string path_;
  sqlite3* db_;
};

}  // namespace coordd
