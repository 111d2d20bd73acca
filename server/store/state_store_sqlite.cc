#include "server/store/state_store_sqlite.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/model/digest.h"

namespace coordd {
namespace {

constexpr int64_t kSqliteFormat = 1;
// The log is emptied this often: some hundred kilobytes.
constexpr int64_t kCommitsPerCheckpoint = 128;

// Ours, beside the records of the caller, whose keys never start with a dot.
constexpr char kFormatKey[] = ".format";
constexpr char kClusterKey[] = ".cluster";
constexpr char kEpochKey[] = ".epoch";
constexpr char kCommitsKey[] = ".commits";
constexpr char kFileKey[] = ".file";

constexpr char kHowToAdopt[] =
    "; put the right one back, or start coordd once with --adopt-state to go on from this one";

std::string DigestOf(absl::string_view key, absl::string_view value) {
  return Sha256(absl::StrCat(key, absl::string_view("\0", 1), value)).substr(0, 16);
}

int64_t NumberIn(const std::map<std::string, std::string>& records, const std::string& key) {
  const auto it = records.find(key);
  int64_t number = 0;
  if (it == records.end() || !absl::SimpleAtoi(it->second, &number)) return 0;
  return number;
}

std::string TextIn(const std::map<std::string, std::string>& records, const std::string& key) {
  const auto it = records.find(key);
  return it == records.end() ? std::string() : it->second;
}

}  // namespace

SqliteStateStore::SqliteStateStore(std::string directory, StateStoreOptions options,
                                   std::string vfs)
    : path_(std::move(directory)), options_(std::move(options)), vfs_(std::move(vfs)) {}

SqliteStateStore::~SqliteStateStore() = default;  // the file is closed before the lock is given up

absl::StatusOr<StoredState> SqliteStateStore::Open(std::function<void(absl::Status)> /*lost*/) {
  COORDD_CHECK(!directory_.has_value());
  COORDD_ASSIGN_OR_RETURN(StateDirectory directory, StateDirectory::Lock(path_, options_.owner));
  directory_.emplace(std::move(directory));
  COORDD_ASSIGN_OR_RETURN(const bool made, MakeFile());
  COORDD_ASSIGN_OR_RETURN(SqliteDatabase database, SqliteDatabase::Open(file(), vfs_));
  database_.emplace(std::move(database));
  COORDD_RETURN_IF_ERROR(
      database_->Execute("CREATE TABLE IF NOT EXISTS records (key BLOB PRIMARY KEY, value BLOB NOT "
                         "NULL, digest BLOB NOT NULL) WITHOUT ROWID"));
  COORDD_ASSIGN_OR_RETURN(Records records, ReadRecords());
  const int64_t format = NumberIn(records, kFormatKey);
  if (format > kSqliteFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat(file(), " has format ", format, ", this coordd knows formats up to ",
                     kSqliteFormat, ": it was written by a newer version; start that one"));
  }
  COORDD_ASSIGN_OR_RETURN(const std::string suspicion, Suspicion(records));
  if (!suspicion.empty() && !options_.adopt) {
    return absl::FailedPreconditionError(absl::StrCat(suspicion, kHowToAdopt));
  }
  if (!suspicion.empty()) COORDD_LOG(kWarning, "adopted: ", suspicion);
  const std::string cluster = TextIn(records, kClusterKey);
  const std::string& expected = options_.expected_cluster_id;
  if (!expected.empty() && !cluster.empty() && cluster != expected) {
    return absl::FailedPreconditionError(absl::StrCat(file(), " is the state of cluster ", cluster,
                                                      ", expected was cluster ", expected));
  }
  return Take(std::move(records), made, !suspicion.empty());
}

absl::StatusOr<bool> SqliteStateStore::MakeFile() {
  // With its mode from the first moment on: SQLite gives its log the same one.
  const int fd = open(file().c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) {
    close(fd);
    COORDD_RETURN_IF_ERROR(SyncDirectory(path_));
    return true;
  }
  if (errno != EEXIST) return FileError(file(), "cannot be made");
  // SQLite would say less of why it cannot.
  const int there = open(file().c_str(), O_RDWR | O_CLOEXEC);
  if (there < 0) return FileError(file(), "cannot be opened");
  close(there);
  struct stat found = {};
  if (stat(file().c_str(), &found) == 0 && (found.st_mode & 077) != 0 &&
      chmod(file().c_str(), 0600) != 0) {
    return FileError(file(), "is readable for others and cannot be changed");
  }
  return false;
}

absl::StatusOr<SqliteStateStore::Records> SqliteStateStore::ReadRecords() {
  Records records;
  std::string damaged;
  COORDD_RETURN_IF_ERROR(database_->ForEachRow(
      "SELECT key, value, digest FROM records",
      [&](absl::string_view key, absl::string_view value, absl::string_view digest) {
        if (DigestOf(key, value) != digest) damaged = std::string(key);
        records[std::string(key)] = std::string(value);
      }));
  if (damaged.empty()) return records;
  return absl::DataLossError(absl::StrCat(
      file(), " is damaged: record ", damaged,
      " is not what was written (its digest differs); restore the directory from a backup, or move "
      "it away to start with nothing"));
}

absl::StatusOr<std::string> SqliteStateStore::Suspicion(const Records& records) {
  const StateDirectory::Witness& seen = directory_->found();
  const int64_t commits = NumberIn(records, kCommitsKey);
  const std::string cluster = TextIn(records, kClusterKey);
  if (commits == 0) {
    if (seen.commits == 0) return std::string();  // new
    return absl::StrCat(file(), " is empty or was missing, but ", path_, "/lock has seen ",
                        seen.commits, " writes of cluster ", seen.cluster_id);
  }
  if (!seen.cluster_id.empty() && seen.cluster_id != cluster) {
    return absl::StrCat(file(), " is the state of cluster ", cluster, ", but ", path_,
                        "/lock belongs to cluster ", seen.cluster_id);
  }
  COORDD_ASSIGN_OR_RETURN(const std::string identity, FileIdentity(file()));
  const std::string written_as = TextIn(records, kFileKey);
  if (written_as != identity) {
    return absl::StrCat(file(), " is a copy: it is ", identity, ", and was last written as ",
                        written_as,
                        ", so what was written to the original since then would be missing");
  }
  if (commits >= seen.commits) return std::string();
  return absl::StrCat(file(), " ends with write ", commits, ", but ", path_, "/lock has seen ",
                      seen.commits, ": an older copy was put back, or its log has lost its end");
}

absl::StatusOr<StoredState> SqliteStateStore::Take(Records records, bool made, bool adopted) {
  cluster_id_ = TextIn(records, kClusterKey);
  if (cluster_id_.empty()) {
    const std::string& expected = options_.expected_cluster_id;
    cluster_id_ = expected.empty() ? options_.new_cluster_id : expected;
  }
  const int64_t stride = adopted ? kAdoptionStride : 1;
  const Epoch epoch{NumberIn(records, kEpochKey) + stride};
  commits_ = std::max(NumberIn(records, kCommitsKey), directory_->found().commits);
  COORDD_ASSIGN_OR_RETURN(const std::string identity, FileIdentity(file()));
  COORDD_RETURN_IF_ERROR(Write({{kFormatKey, absl::StrCat(kSqliteFormat)},
                                {kClusterKey, cluster_id_},
                                {kEpochKey, absl::StrCat(ToInt(epoch))},
                                {kFileKey, identity}}));
  // What has been there for long is moved out of the log, where one lost page would cost more.
  if (!made) COORDD_RETURN_IF_ERROR(database_->Checkpoint());
  StoredState state{cluster_id_, epoch, std::move(records), adopted};
  std::erase_if(state.records, [](const auto& record) { return record.first[0] == '.'; });
  return state;
}

absl::Status SqliteStateStore::Commit(absl::Span<const StateWrite> writes) {
  COORDD_CHECK(database_.has_value());
  COORDD_RETURN_IF_ERROR(CheckStateWrites(writes, /*bound_bytes=*/false));
  for (const StateWrite& write : writes) {
    if (write.key[0] == '.') return absl::InvalidArgumentError("a record's key starts with a dot");
  }
  if (!broken_.ok()) return broken_;
  COORDD_RETURN_IF_ERROR(Write(writes));
  if (commits_ - checkpointed_ < kCommitsPerCheckpoint) return absl::OkStatus();
  // What was committed is safe in the log whatever becomes of this.
  const absl::Status moved = database_->Checkpoint();
  if (moved.ok()) {
    checkpointed_ = commits_;
  } else if (IsPassing(moved)) {
    COORDD_LOG(kWarning, moved.message(), "; its log grows until it can be");
  } else {
    Broken(moved).IgnoreError();  // the next one hears of it
  }
  return absl::OkStatus();
}

absl::Status SqliteStateStore::Write(absl::Span<const StateWrite> writes) {
  auto put = [this](const std::string& key, const std::string& value) {
    return database_->Run("INSERT OR REPLACE INTO records (key, value, digest) VALUES (?1, ?2, ?3)",
                          key, value, DigestOf(key, value));
  };
  auto all = [&]() -> absl::Status {
    COORDD_RETURN_IF_ERROR(database_->Execute("BEGIN IMMEDIATE"));
    for (const StateWrite& write : writes) {
      COORDD_RETURN_IF_ERROR(write.value.has_value()
                                 ? put(write.key, *write.value)
                                 : database_->Run("DELETE FROM records WHERE key = ?1", write.key));
    }
    COORDD_RETURN_IF_ERROR(put(kCommitsKey, absl::StrCat(commits_ + 1)));
    return database_->Execute("COMMIT");
  };
  const absl::Status status = all();
  if (!status.ok()) {
    database_->Execute("ROLLBACK").IgnoreError();  // SQLite may have done so already
    return IsPassing(status) ? status : Broken(status);
  }
  ++commits_;
  // The file is what counts. Without the note an older copy would be taken for it.
  const absl::Status noted = directory_->Note({.cluster_id = cluster_id_, .commits = commits_});
  if (!noted.ok()) COORDD_LOG(kWarning, noted.message());
  return absl::OkStatus();
}

absl::Status SqliteStateStore::Broken(absl::Status why) {
  broken_ = absl::Status(
      why.code(),
      absl::StrCat(why.message(), "; nothing more is written to it until coordd is started again"));
  database_->LeaveLog();
  return broken_;
}

}  // namespace coordd
