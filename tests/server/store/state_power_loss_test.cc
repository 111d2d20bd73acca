// A machine that loses power at any moment while state is written: what was said to be durable is
// there afterwards. The same test must notice a disk that lies about its syncs, and a writer that
// speaks too early.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "server/store/state_store_sqlite.h"
#include "tests/support/fault_vfs.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

enum class Bug { kNone, kLyingDisk, kAcknowledgesEarly };

constexpr size_t kSectorBytes = 512;

class PowerLoss {
 public:
  PowerLoss(uint64_t seed, Bug bug) : bug_(bug), random_(seed) {}

  // OK: all that was acknowledged is there, in three lives with a loss of power after each.
  absl::Status Run() {
    std::set<int> acknowledged;
    for (int life = 0; life < 3; ++life) {
      absl::Status status = LiveAndDie(life * 1000, acknowledged);
      if (!status.ok()) return status;
      SqliteStateStore store(path(), Options(), FaultVfs::kName);
      const auto state = store.Open([](const absl::Status&) {});
      if (!state.ok()) return state.status();
      for (int number : acknowledged) {
        if (!state->records.contains(absl::StrCat("job/", number))) {
          return absl::DataLossError(
              absl::StrCat("record ", number, " was acknowledged and is gone"));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  std::string path() const { return directory_ / "state"; }
  static StateStoreOptions Options() { return {.new_cluster_id = "c0ffee"}; }

  // Another process, so that the store is not closed. It writes until it has done some commits, and
  // the power goes in the middle of one more.
  absl::Status LiveAndDie(int first, std::set<int>& acknowledged) {
    int pipes[2];
    if (pipe(pipes) != 0) return absl::InternalError("no pipe");
    const int commits = static_cast<int>(random_.Below(12));
    const uint64_t seed = random_.Next();
    const pid_t child = fork();
    if (child == 0) {
      close(pipes[0]);
      Live(first, commits, seed, pipes[1]);
      _exit(0);
    }
    close(pipes[1]);
    std::string said(1 << 16, '\0');
    size_t size = 0;
    for (ssize_t got = 1; got > 0; size += static_cast<size_t>(got)) {
      got = read(pipes[0], said.data() + size, said.size() - size);
      if (got < 0) got = 0;
    }
    close(pipes[0]);
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) return absl::InternalError("the writer could not write");
    for (absl::string_view line : absl::StrSplit(said.substr(0, size), '\n', absl::SkipEmpty())) {
      int number = 0;
      if (absl::SimpleAtoi(line, &number)) acknowledged.insert(number);
    }
    return absl::OkStatus();
  }

  void Live(int first, int commits, uint64_t seed, int to_parent) {
    Random random(seed);
    std::map<std::string, std::string> synced;
    // What earlier lives left has been on the disk for long.
    for (const char* name : {"state.db", "state.db-wal", "lock"}) {
      const std::string file = path() + "/" + name;
      if (std::filesystem::exists(file)) synced[file] = FileText(file);
    }
    disk_.on_sync = [&](const std::string& file) {
      if (bug_ != Bug::kLyingDisk) synced[file] = FileText(file);
      return SQLITE_OK;
    };
    SqliteStateStore store(path(), Options(), FaultVfs::kName);
    if (!store.Open([](const absl::Status&) {}).ok()) _exit(1);
    auto say = [&](int number) {
      const std::string line = absl::StrCat(number, "\n");
      if (write(to_parent, line.data(), line.size()) < 0) _exit(1);
    };
    for (int i = 0; i < commits; ++i) {
      const int number = first + i;
      if (bug_ == Bug::kAcknowledgesEarly) say(number);
      // The power goes after some of the last commit's writes.
      if (i == commits - 1) {
        int left = static_cast<int>(random.Below(6));
        disk_.on_write = [&, left](const std::string&) mutable {
          if (left-- == 0) Die(synced, random);
          return SQLITE_OK;
        };
      }
      if (!store.Commit({{absl::StrCat("job/", number), std::string(random.Below(3000), 'v')}})
               .ok()) {
        _exit(1);
      }
      if (bug_ != Bug::kAcknowledgesEarly) say(number);
    }
    Die(synced, random);
  }

  // Of each file what was synced is there; of each sector that was written since then, either. A
  // file whose directory entry was synced (SQLite does that with its own) stays.
  [[noreturn]] void Die(const std::map<std::string, std::string>& synced, Random& random) {
    disk_.on_write = nullptr;
    for (const char* name : {"state.db", "state.db-wal", "lock"}) {
      const std::string file = path() + "/" + name;
      if (!std::filesystem::exists(file)) continue;
      const auto it = synced.find(file);
      const std::string old = it == synced.end() ? std::string() : it->second;
      const std::string now = FileText(file);
      std::string left = old;
      if (random.Below(2) == 0) left.resize(std::max(old.size(), now.size()), '\0');
      for (size_t at = 0; at < left.size(); at += kSectorBytes) {
        if (random.Below(2) == 0 || at >= now.size()) continue;
        const size_t size = std::min({kSectorBytes, left.size() - at, now.size() - at});
        left.replace(at, size, now.substr(at, size));
      }
      std::ofstream(file, std::ios::binary | std::ios::trunc) << left;
    }
    _exit(0);
  }

  const Bug bug_;
  Random random_;
  FaultVfs disk_;
  TempDirectory directory_{"/dev/shm"};
};

int NoticedBy(Bug bug, uint64_t runs) {
  int noticed = 0;
  for (uint64_t seed = 1; seed <= runs; ++seed) noticed += PowerLoss(seed, bug).Run().ok() ? 0 : 1;
  return noticed;
}

// COORDD_POWER_LOSSES: how many; more than these were tried before this was written.
TEST(StatePowerLoss, WhatWasAcknowledgedIsThere) {
  const char* asked = std::getenv("COORDD_POWER_LOSSES");
  int runs = 60;
  if (asked != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(asked, &runs));
  }
  for (int seed = 1; seed <= runs; ++seed) {
    ASSERT_THAT(PowerLoss(static_cast<uint64_t>(seed), Bug::kNone).Run(), IsOk())
        << "seed " << seed;
  }
}

TEST(StatePowerLoss, NoticesPlantedLosses) {
  EXPECT_GE(NoticedBy(Bug::kLyingDisk, 10), 9);
  EXPECT_GE(NoticedBy(Bug::kAcknowledgesEarly, 20), 8);
}

}  // namespace
}  // namespace coordd
