// A rank is killed at every turn of its getting to know another one over UCX, which goes on. Each
// is a process of its own, so that what ends one of them by an assertion of UCX's is seen.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/transport/ucx/ucx_factory.h"

namespace coordd {
namespace {

constexpr Rank kSurvivor{0}, kVictim{1};

// What the two processes share.
struct Board {
  struct Value {
    std::atomic<bool> is_set = false;
    size_t size = 0;
    std::array<char, 4096> bytes;
  };
  std::array<Value, 2> addresses;
  std::atomic<int> connected = 0;
  std::atomic<int> turns = 0;  // even: it is the victim's turn
  std::atomic<bool> is_dead = false;
};

// The addresses, by the rank at the end of their keys.
class BoardStore : public Store {
 public:
  explicit BoardStore(Board& board) : board_(board) {}
  absl::Status Set(absl::string_view key, std::string value, absl::Time) override {
    Board::Value& slot = SlotOf(key);
    slot.size = value.copy(slot.bytes.data(), slot.bytes.size());
    slot.is_set = true;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time) override {
    Board::Value& slot = SlotOf(key);
    while (!slot.is_set) sched_yield();
    return std::string(slot.bytes.data(), slot.size);
  }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t, absl::Time) override {
    return absl::UnimplementedError("Add");
  }
  absl::Status DeletePrefix(absl::string_view, absl::Time) override {
    return absl::UnimplementedError("DeletePrefix");
  }

 private:
  Board::Value& SlotOf(absl::string_view key) {
    return board_.addresses.at(key.back() == '0' ? 0 : 1);
  }
  Board& board_;
};

// What the two have to do with each other.
struct Work {
  std::string name;
  bool survivor_sends, victim_sends;
  size_t size_bytes;
  int survivor_turns;  // for each of the victim's; 0: none before it is dead
  int late_by;         // turns that the survivor takes before it wants anything of the victim
};

// How they end.
constexpr int kExpected = 0, kFailed = 1, kWrongStatus = 2;

struct RankProcess {
  RankProcess(Board& board, const Work& work, Rank self) : board(board), work(work), store(board) {
    transport = TryMakeUcxTransport({.local_address = "127.0.0.1", .environment = {}, .ports = {}},
                                    Clock::Real())
                    .value();
    const GroupLayout layout(self, {{2, 1}});
    connected = transport->Connect(layout, store, absl::InfiniteFuture()).ok();
    ++board.connected;
    while (board.connected < 2) sched_yield();
  }
  void Start(Rank other, bool sends, bool receives) {
    bytes.resize(work.size_bytes);
    landing.resize(work.size_bytes);
    auto done = [this](absl::Status status) {
      --pending;
      // What was sent, or had come, before its end.
      as_expected &= status.ok() || absl::IsUnavailable(status);
    };
    pending = int{sends} + int{receives};
    const Tag tag{};
    if (sends) transport->Send(other, tag, absl::MakeSpan(bytes), done);
    if (receives) transport->Receive(other, tag, absl::MakeSpan(landing), done);
  }

  Board& board;
  const Work& work;
  BoardStore store;
  std::unique_ptr<Transport> transport;
  bool connected = false;
  std::vector<std::byte> bytes, landing;
  int pending = 0;
  bool as_expected = true;
};

// UCX's own threads, too, which accept connections.
void LetOthersRun() {
  constexpr int kYields = 200;
  for (int i = 0; i < kYields; ++i) sched_yield();
}

[[noreturn]] void BeVictim(Board& board, const Work& work, int turns) {
  RankProcess rank(board, work, kVictim);
  rank.Start(kSurvivor, work.victim_sends, work.survivor_sends);
  for (int turn = 0; turn < turns; ++turn) {
    rank.transport->Progress();
    LetOthersRun();
    if (work.survivor_turns == 0) continue;
    ++board.turns;
    while (board.turns % 2 != 0) sched_yield();
  }
  kill(getpid(), SIGKILL);
  _exit(kFailed);
}

[[noreturn]] void BeSurvivor(Board& board, const Work& work) {
  {
    RankProcess rank(board, work, kSurvivor);
    if (!rank.connected) _exit(kFailed);
    auto start = [&] { rank.Start(kVictim, work.survivor_sends, work.victim_sends); };
    int round = 0;
    if (work.late_by == 0) start();
    while (!board.is_dead) {
      sched_yield();
      if (board.turns % 2 == 0) continue;
      if (++round == work.late_by) start();
      for (int turn = 0; turn < work.survivor_turns; ++turn) rank.transport->Progress();
      LetOthersRun();
      ++board.turns;
    }
    for (int turn = 0; turn < 100; ++turn) rank.transport->Progress();
    if (round < work.late_by) start();
    while (rank.pending > 0) rank.transport->Progress();
    for (int turn = 0; turn < 100; ++turn) rank.transport->Progress();
    if (!rank.as_expected) _exit(kWrongStatus);
  }
  _exit(kExpected);
}

pid_t Fork(const auto& child) {
  const pid_t pid = fork();
  if (pid == 0) child();
  return pid;
}

int StatusOf(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

class UcxKilledPeerTest : public testing::TestWithParam<Work> {};

TEST_P(UcxKilledPeerTest, EndsNobodyElse) {
  // Both know each other long before that.
  constexpr int kTurns = 12;
  for (int turns = 0; turns < kTurns; ++turns) {
    SCOPED_TRACE(absl::StrCat("killed after ", turns, " turns"));
    void* const memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto& board = *new (memory) Board();
    const pid_t survivor = Fork([&] { BeSurvivor(board, GetParam()); });
    const pid_t victim = Fork([&] { BeVictim(board, GetParam(), turns); });
    EXPECT_EQ(WTERMSIG(StatusOf(victim)), SIGKILL);
    board.is_dead = true;
    const int status = StatusOf(survivor);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), kExpected);
    munmap(memory, sizeof(Board));
  }
}

// Late by 1000: only when the victim is dead.
std::vector<Work> AllWork() {
  std::vector<Work> all;
  for (const size_t size_bytes : {size_t{100}, size_t{100} << 10}) {
    for (const int turns : {0, 1, 3}) {
      for (const int late_by : {0, 2, 1000}) {
        auto add = [&](const char* name, bool survivor_sends, bool victim_sends) {
          all.push_back(
              {absl::StrCat(name, "_", size_bytes, "Bytes_", turns, "Turns_Late", late_by),
               survivor_sends, victim_sends, size_bytes, turns, late_by});
        };
        add("VictimSends", false, true);
        add("SurvivorSends", true, false);
        add("BothSend", true, true);
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxKilledPeerTest, testing::ValuesIn(AllWork()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace coordd
