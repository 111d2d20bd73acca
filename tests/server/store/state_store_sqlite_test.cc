// What is special about state on a disk: what is noticed, what is refused, and what a full or
// failing disk does.
#include "server/store/state_store_sqlite.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/model/digest.h"
#include "tests/support/fault_vfs.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SqliteStateStoreTest : public testing::Test {
 protected:
  std::unique_ptr<SqliteStateStore> Make(bool adopt = false,
                                         const std::string& cluster = "c0ffee") {
    return std::make_unique<SqliteStateStore>(path(),
                                              StateStoreOptions{.new_cluster_id = cluster,
                                                                .expected_cluster_id = "",
                                                                .adopt = adopt,
                                                                .owner = "pid 7 on host a"},
                                              FaultVfs::kName);
  }
  std::string path() const { return directory_ / "state"; }
  std::string db() const { return path() + "/state.db"; }
  std::string lock() const { return path() + "/lock"; }
  std::string wal() const { return db() + "-wal"; }

  // A coordd that is killed after `commits` writes job/0=0, job/1=1, ...: another process, so that
  // nothing of it is closed.
  void RunAndKill(int commits) {
    const pid_t child = fork();
    if (child == 0) {
      auto store = Make();
      bool ok = store->Open([](const absl::Status&) {}).ok();
      for (int i = 0; i < commits; ++i) {
        ok = ok && store->Commit({{absl::StrCat("job/", i), absl::StrCat(i)}}).ok();
      }
      _exit(ok ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  absl::StatusOr<StoredState> Look(bool adopt = false) {
    return Make(adopt)->Open([](const absl::Status&) {});
  }
  // Replaces the contents and keeps the file.
  static void Put(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  FaultVfs disk_;
  TempDirectory directory_;
};

TEST_F(SqliteStateStoreTest, KeepsItsFilesToItself) {
  const mode_t mask = umask(0);
  RunAndKill(1);
  umask(mask);
  struct stat found = {};
  ASSERT_EQ(stat(path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  for (const std::string& file : {db(), wal(), lock()}) {
    ASSERT_EQ(stat(file.c_str(), &found), 0) << file;
    EXPECT_EQ(found.st_mode & 0777, 0600u) << file;
  }
}

TEST_F(SqliteStateStoreTest, RefusesADirectoryThatOthersCanReach) {
  RunAndKill(1);
  for (const mode_t mode : {0777, 0755, 0710}) {
    ASSERT_EQ(chmod(path().c_str(), mode), 0);
    EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr(path()), HasSubstr("has mode 07"),
                                       HasSubstr("chmod 700"))));
  }
  ASSERT_EQ(chmod(path().c_str(), 0700), 0);
  EXPECT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, RefusesADirectoryThatOthersCanReplace) {
  ASSERT_EQ(chmod(directory_.path().c_str(), 0777), 0);
  EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr(directory_.path()), HasSubstr("replace"))));
  ASSERT_EQ(chmod(directory_.path().c_str(), 01777), 0);  // as /tmp
  EXPECT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, FollowsNoLinkThatWasPutIntoItsDirectory) {
  ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
  const std::string target = directory_ / "target";
  for (const std::string& file : {lock(), db()}) {
    ASSERT_EQ(symlink(target.c_str(), file.c_str()), 0);
    EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr(file), HasSubstr("is a link"))));
    EXPECT_FALSE(std::filesystem::exists(target));
    Put(target, "somebody's");
    EXPECT_FALSE(Look().ok());
    EXPECT_EQ(std::filesystem::file_size(target), 10u);
    std::filesystem::remove(target);
    std::filesystem::remove(file);
  }
  EXPECT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, WaitsForNoPipeInPlaceOfAFile) {
  ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
  for (const std::string& file : {lock(), db(), wal()}) {
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr(file), HasSubstr("is a pipe, expected a file"))));
    std::filesystem::remove(file);
  }
  ASSERT_EQ(mkdir(lock().c_str(), 0700), 0);
  EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(lock())));
  std::filesystem::remove(lock());
  EXPECT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, WritesIntoNoFileThatHasAnotherName) {
  ASSERT_EQ(mkdir(path().c_str(), 0700), 0);
  const std::string target = directory_ / "target";
  Put(target, "somebody's");
  ASSERT_EQ(chmod(target.c_str(), 0600), 0);
  for (const std::string& file : {lock(), db()}) {
    ASSERT_EQ(link(target.c_str(), file.c_str()), 0);
    EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr(file), HasSubstr("hard link"))));
    EXPECT_EQ(std::filesystem::file_size(target), 10u);
    std::filesystem::remove(file);
  }
  EXPECT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, FollowsALinkToItsDirectoryThatItsOwnUserHasMadeAlone) {
  const std::string real = directory_ / "real";
  ASSERT_EQ(mkdir(real.c_str(), 0700), 0);
  ASSERT_EQ(symlink(real.c_str(), path().c_str()), 0);
  EXPECT_THAT(Look(), IsOk());
  if (lchown(path().c_str(), 4711, 4711) != 0) return;  // only root can make somebody else's
  EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr(path()), HasSubstr("a link that user 4711"))));
}

TEST_F(SqliteStateStoreTest, SyncsEachCommitBeforeItReturns) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  for (int i = 0; i < 3; ++i) {
    disk_.syncs = 0;
    ASSERT_THAT(store->Commit({{"job/a", absl::StrCat(i)}}), IsOk());
    EXPECT_GE(disk_.syncs, 1);
  }
}

TEST_F(SqliteStateStoreTest, AKilledOneIsFollowedByOneThatHasEverything) {
  RunAndKill(5);
  const auto state = Look();
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->epoch, Epoch{2});
  EXPECT_EQ(state->records.size(), 5u);
}

TEST_F(SqliteStateStoreTest, RefusesACopyAndAdoptsItWhenTold) {
  RunAndKill(2);
  ASSERT_THAT(Look(), IsOk());
  std::filesystem::rename(path(), directory_ / "original");
  std::filesystem::copy(directory_ / "original", path());
  std::filesystem::remove(lock());
  EXPECT_THAT(Look(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(db()), HasSubstr("is a copy"), HasSubstr("--adopt-state"))));
  const auto adopted = Look(/*adopt=*/true);
  ASSERT_THAT(adopted, IsOk());
  EXPECT_TRUE(adopted->adopted);
  EXPECT_EQ(adopted->epoch, Epoch{2 + kAdoptionStride});
  EXPECT_EQ(adopted->records.size(), 2u);
  const auto next = Look();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(next->epoch, Epoch{3 + kAdoptionStride});
}

TEST_F(SqliteStateStoreTest, AMovedDirectoryIsNoCopy) {
  RunAndKill(2);
  std::filesystem::rename(path(), directory_ / "elsewhere");
  std::filesystem::rename(directory_ / "elsewhere", path());
  EXPECT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, RefusesAnOlderCopyThatWasPutBackInPlace) {
  RunAndKill(2);
  ASSERT_THAT(Look(), IsOk());
  const std::string old = FileText(db());
  RunAndKill(9);
  ASSERT_THAT(Look(), IsOk());
  Put(db(), old);
  EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("ends with write"), HasSubstr("older copy"))));
  const auto adopted = Look(/*adopt=*/true);
  ASSERT_THAT(adopted, IsOk());
  EXPECT_GT(adopted->epoch, Epoch{kAdoptionStride});
}

TEST_F(SqliteStateStoreTest, RefusesToStartAnewBesideALockThatKnowsBetter) {
  RunAndKill(2);
  ASSERT_THAT(Look(), IsOk());
  std::filesystem::remove(db());
  EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("missing"), HasSubstr("c0ffee"))));
}

TEST_F(SqliteStateStoreTest, RefusesTheFileOfAnotherCluster) {
  RunAndKill(2);
  ASSERT_THAT(Look(), IsOk());
  std::string other = FileText(lock());
  other.replace(other.find("c0ffee"), 6, "decade");
  Put(lock(), other);
  EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("c0ffee"), HasSubstr("decade"))));
}

TEST_F(SqliteStateStoreTest, ATornLastWriteThatNobodyWasToldOfIsForgotten) {
  RunAndKill(3);
  // Killed after the write and before the note of it.
  std::string note = FileText(lock());
  const size_t number = note.find("commits 4");
  ASSERT_NE(number, std::string::npos) << note;
  note.replace(number, 9, "commits 3");
  const std::string log = FileText(wal());
  const std::string file = FileText(db());
  Put(lock(), note);
  Put(wal(), log.substr(0, log.size() - 100));
  const auto state = Look();
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->records.size(), 2u);
}

// Whatever single byte of the three files changes, and wherever the log is cut: the state is whole,
// or it is refused. It is never silently something else.
TEST_F(SqliteStateStoreTest, NoticesEveryFlippedBitAndEveryCutThatMatters) {
  RunAndKill(4);
  const std::vector<std::string> files = {db(), wal(), lock()};
  std::vector<std::string> bytes;
  for (const std::string& file : files) bytes.push_back(FileText(file));
  ASSERT_GT(bytes[1].size(), 10000u);  // the log has not been moved into the file yet
  const std::map<std::string, std::string> whole = {
      {"job/0", "0"}, {"job/1", "1"}, {"job/2", "2"}, {"job/3", "3"}};
  int refused = 0;
  int tried = 0;
  auto look = [&](const std::string& what) {
    ++tried;
    const auto state = Look();
    if (state.ok()) {
      EXPECT_EQ(state->records, whole) << what;
    } else {
      ++refused;
      EXPECT_THAT(std::string(state.status().message()), HasSubstr("state")) << what;
    }
    for (size_t i = 0; i < files.size(); ++i) Put(files[i], bytes[i]);
  };
  for (size_t i = 0; i < files.size(); ++i) {
    const size_t step = std::max<size_t>(1, bytes[i].size() / 60) | 1;
    for (size_t at = 0; at < bytes[i].size(); at += step) {
      std::string changed = bytes[i];
      changed[at] = static_cast<char>(changed[at] ^ 0x10);
      Put(files[i], changed);
      look(absl::StrCat(files[i], " bit flipped at ", at));
    }
  }
  for (size_t size = 0; size < bytes[1].size(); size += bytes[1].size() / 40) {
    Put(wal(), bytes[1].substr(0, size));
    look(absl::StrCat("log cut at ", size));
  }
  EXPECT_GT(refused, 60);
  EXPECT_LT(refused, tried);
  EXPECT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, AFullDiskIsSaidAndGoesOnWhenThereIsRoomAgain) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  ASSERT_THAT(store->Commit({{"job/a", "before"}}), IsOk());
  disk_.on_write = [](const std::string&) { return SQLITE_FULL; };
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(
        store->Commit({{"job/a", "lost"}}),
        StatusIs(absl::StatusCode::kResourceExhausted, AllOf(HasSubstr(db()), HasSubstr("full"))));
  }
  disk_.on_write = nullptr;
  ASSERT_THAT(store->Commit({{"job/b", "after"}}), IsOk());
  store.reset();
  const auto state = Look();
  ASSERT_THAT(state, IsOk());
  EXPECT_THAT(state->records, testing::ElementsAre(testing::Pair("job/a", "before"),
                                                   testing::Pair("job/b", "after")));
}

TEST_F(SqliteStateStoreTest, AFailedWriteMayBeTriedAgain) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  disk_.on_write = [](const std::string&) { return SQLITE_IOERR_WRITE; };
  EXPECT_THAT(store->Commit({{"job/a", "lost"}}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(db())));
  disk_.on_write = nullptr;
  EXPECT_THAT(store->Commit({{"job/a", "kept"}}), IsOk());
}

// A second sync may say that all is well although the first has dropped the pages.
TEST_F(SqliteStateStoreTest, AfterAFailedSyncNothingIsTakenAnyMore) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  ASSERT_THAT(store->Commit({{"job/a", "before"}}), IsOk());
  disk_.on_sync = [](const std::string& file) {
    return absl::EndsWith(file, "-wal") ? SQLITE_IOERR_FSYNC : SQLITE_OK;
  };
  EXPECT_THAT(
      store->Commit({{"job/a", "who knows"}}),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(db()), HasSubstr("sync failed"))));
  disk_.on_sync = nullptr;
  EXPECT_THAT(store->Commit({{"job/a", "again"}}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("until coordd is started again")));
  disk_.syncs = 0;
  store.reset();
  EXPECT_EQ(disk_.syncs, 0);  // nothing is made to look durable on the way out
  ASSERT_THAT(Look(), IsOk());
}

TEST_F(SqliteStateStoreTest, AFailedSyncWhileTheLogIsEmptiedIsNotForgotten) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  disk_.on_sync = [](const std::string& file) {
    return absl::EndsWith(file, "-wal") ? SQLITE_OK : SQLITE_IOERR_FSYNC;
  };
  absl::Status status;
  int commits = 0;
  for (; status.ok() && commits < 1000; ++commits) {
    status = store->Commit({{"job/a", absl::StrCat(commits)}});
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("sync failed")));
  disk_.on_sync = nullptr;
  store.reset();
  const auto state = Look();
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->records.at("job/a"), absl::StrCat(commits - 2));  // the last that was taken
}

TEST_F(SqliteStateStoreTest, EmptiesItsLogNowAndThen) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  size_t largest = 0;
  for (int i = 0; i < 600; ++i) {
    ASSERT_THAT(store->Commit({{"job/a", std::string(100, 'v')}}), IsOk());
    largest = std::max(largest, static_cast<size_t>(std::filesystem::file_size(wal())));
  }
  EXPECT_LT(largest, size_t{2} << 20);
}

TEST_F(SqliteStateStoreTest, RefusesANewerFormat) {
  RunAndKill(1);
  {
    auto database = SqliteDatabase::Open(db(), FaultVfs::kName);
    ASSERT_THAT(database, IsOk());
    const std::string digest = Sha256(std::string(".format\0002", 9)).substr(0, 16);
    ASSERT_THAT(database->Run("UPDATE records SET value = ?2, digest = ?3 WHERE key = ?1",
                              ".format", "2", digest),
                IsOk());
  }
  EXPECT_THAT(Look(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("format 2"), HasSubstr("formats up to 1"))));
}

TEST_F(SqliteStateStoreTest, LeavesKeysWithADotToItself) {
  auto store = Make();
  ASSERT_THAT(store->Open([](const absl::Status&) {}), IsOk());
  EXPECT_THAT(store->Commit({{".format", "2"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dot")));
}

TEST_F(SqliteStateStoreTest, SaysWhatIsNotADirectory) {
  Put(path(), "a file");
  EXPECT_THAT(Look(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not a directory")));
}

TEST(NetworkFileSystem, IsKnownByName) {
  EXPECT_EQ(NetworkFileSystemName(0x6969), "NFS");
  EXPECT_EQ(NetworkFileSystemName(static_cast<int64_t>(0xFF534D42)), "CIFS");
  EXPECT_EQ(NetworkFileSystemName(0x0BD00BD0), "Lustre");
  EXPECT_EQ(NetworkFileSystemName(0xEF53), "");      // ext4
  EXPECT_EQ(NetworkFileSystemName(0x01021994), "");  // tmpfs
  EXPECT_EQ(NetworkFileSystemName(0x58465342), "");  // XFS
}

}  // namespace
}  // namespace coordd
