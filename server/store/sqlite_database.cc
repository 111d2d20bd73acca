#include "server/store/sqlite_database.h"

#include <sqlite3.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// A log that grows without end would make the next start slow. 1 MiB of pages is some hundred
// generations.
constexpr char kSettings[] =
    "PRAGMA locking_mode=EXCLUSIVE;"  // no shared memory beside the file: nobody else reads it
    "PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=FULL;"
    "PRAGMA wal_autocheckpoint=0;"  // its errors would be swallowed: Checkpoint() reports them
    "PRAGMA cell_size_check=ON;"
    "PRAGMA temp_store=MEMORY;";

absl::StatusCode CodeOf(int code) {
  switch (code) {  // extended ones first
    case SQLITE_IOERR_FSYNC:
    case SQLITE_IOERR_DIR_FSYNC:
    case SQLITE_IOERR_READ:
    case SQLITE_IOERR_SHORT_READ:
    case SQLITE_IOERR_CORRUPTFS:
      return absl::StatusCode::kDataLoss;
    default:
      break;
  }
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
      return absl::StatusCode::kDataLoss;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_BUSY:
    case SQLITE_PERM:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::string_view Column(sqlite3_stmt* statement, int column) {
  const void* bytes = sqlite3_column_blob(statement, column);
  if (bytes == nullptr) return {};
  return {static_cast<const char*>(bytes),
          static_cast<size_t>(sqlite3_column_bytes(statement, column))};
}

using Statement = std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)>;

}  // namespace

absl::StatusOr<SqliteDatabase> SqliteDatabase::Open(const std::string& path,
                                                    const std::string& vfs) {
  sqlite3* db = nullptr;
  // One thread at a time: its owner's, then the writer's, then its owner's.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  const int code = sqlite3_open_v2(path.c_str(), &db, flags, vfs.empty() ? nullptr : vfs.c_str());
  SqliteDatabase database(path, db);
  if (code != SQLITE_OK) return database.Error(code, "cannot be opened");
  COORDD_RETURN_IF_ERROR(database.Prepare());
  return database;
}

absl::Status SqliteDatabase::Prepare() {
  COORDD_RETURN_IF_ERROR(Execute(kSettings));
  std::string found;
  COORDD_RETURN_IF_ERROR(ForEachRow("SELECT integrity_check, '', '' FROM pragma_integrity_check(1)",
                                    [&](absl::string_view text, absl::string_view,
                                        absl::string_view) { found = std::string(text); }));
  if (found == "ok") return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, " is damaged: SQLite's check of the file found \"", found, "\""));
}

SqliteDatabase::SqliteDatabase(SqliteDatabase&& other) noexcept
    : path_(std::move(other.path_)), db_(std::exchange(other.db_, nullptr)) {}

SqliteDatabase::~SqliteDatabase() { sqlite3_close(db_); }  // null is fine

absl::Status SqliteDatabase::Execute(const char* sql) {
  const int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, "cannot be used");
}

absl::Status SqliteDatabase::Run(const char* sql, absl::string_view first, absl::string_view second,
                                 absl::string_view third) {
  sqlite3_stmt* raw = nullptr;
  int code = sqlite3_prepare_v2(db_, sql, -1, &raw, nullptr);
  const Statement statement(raw, sqlite3_finalize);
  if (code != SQLITE_OK) return Error(code, "cannot be used");
  int index = 0;
  for (absl::string_view value : {first, second, third}) {
    if (index == sqlite3_bind_parameter_count(raw)) break;
    // A null pointer would be bound as NULL.
    sqlite3_bind_blob64(raw, ++index, value.empty() ? "" : value.data(), value.size(),
                        SQLITE_STATIC);
  }
  code = sqlite3_step(raw);
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code, "cannot be written");
}

absl::Status SqliteDatabase::ForEachRow(
    const char* sql,
    const std::function<void(absl::string_view, absl::string_view, absl::string_view)>& row) {
  sqlite3_stmt* raw = nullptr;
  int code = sqlite3_prepare_v2(db_, sql, -1, &raw, nullptr);
  const Statement statement(raw, sqlite3_finalize);
  if (code != SQLITE_OK) return Error(code, "cannot be read");
  while ((code = sqlite3_step(raw)) == SQLITE_ROW) {
    row(Column(raw, 0), Column(raw, 1), Column(raw, 2));
  }
  return code == SQLITE_DONE ? absl::OkStatus() : Error(code, "cannot be read");
}

absl::Status SqliteDatabase::Checkpoint() {
  const int code =
      sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, "cannot be written");
}

void SqliteDatabase::LeaveLog() {
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
}

absl::Status SqliteDatabase::Error(int code, absl::string_view doing) const {
  std::string text = absl::StrCat(path_, " ", doing, ": ", sqlite3_errstr(code));
  if (db_ != nullptr) {
    text = absl::StrCat(path_, " ", doing, ": ", sqlite3_errmsg(db_));
    const int system = sqlite3_system_errno(db_);
    const bool about_system = (code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_FULL ||
                              (code & 0xff) == SQLITE_CANTOPEN;
    if (about_system && system != 0) absl::StrAppend(&text, " (", std::strerror(system), ")");
  }
  if (code == SQLITE_IOERR_FSYNC || code == SQLITE_IOERR_DIR_FSYNC) {
    absl::StrAppend(&text, "; a sync failed, so what is on the disk is not known");
  }
  return absl::Status(CodeOf(code), text);
}

}  // namespace coordd
