#include "tests/support/gpu/fake_clique.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "tests/support/gpu/fake_rest.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {

struct FakeClique::Shared {
  struct alignas(64) Member {
    std::atomic<uint32_t> attached;
    std::atomic<uint32_t> device_key;  // + 1; 0: not set
    std::atomic<uint32_t> host;
    std::atomic<uint32_t> phase;  // barriers that it has reached
    FakeOperation operation;
    std::atomic<uint32_t> windows;
    FakeWindow last_windows[2];  // by number; a rank is ahead of another by one at most
  };
  struct alignas(64) Pair {
    std::atomic<uint32_t> full;
    uint32_t bytes;
    char data[kFakePairBytes];
  };
  std::atomic<uint32_t> size;
  std::atomic<uint32_t> count;
  std::atomic<uint64_t> shrunk_by;
  Member members[kFakeRanksMax];
  char mailboxes[kFakeRanksMax][kFakeMailboxBytes];
  Pair pairs[kFakeRanksMax][kFakeRanksMax];  // [from][to]
};

namespace {

// Cliques of this process that are not complete yet, and what has served: an id with a rank of this
// process, which other processes do not know.
struct Registry {
  std::mutex mu;
  std::map<std::string, std::weak_ptr<FakeClique>> forming;
  std::set<std::pair<std::string, int>> used;
};
Registry& TheRegistry() {
  static Registry* registry = new Registry;
  return *registry;
}

std::string Hex(const char* id) {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(id[i]));
    text += digits;
  }
  return text;
}

uint32_t HostKey() {
  const char* const named = getenv("NCCL_HOSTID");
  uint32_t key = 2166136261u;
  for (const char* at = named != nullptr ? named : ""; *at != '\0'; ++at)
    key = (key ^ static_cast<unsigned char>(*at)) * 16777619u;
  return key;
}

// Until `word` differs from `value`, or some milliseconds.
void WaitWhile(const std::atomic<uint32_t>& word, uint32_t value, int round) {
  if (round < 20) {
    sched_yield();
    return;
  }
  const timespec limit{0, 2'000'000};
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT, value, &limit, nullptr,
          0);
}
void Wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE, kFakeRanksMax, nullptr,
          nullptr, 0);
}

}  // namespace

std::shared_ptr<FakeClique> FakeClique::Attach(const NcclUniqueId* ids, int count, int size,
                                               int rank) {
  Registry& registry = TheRegistry();
  std::lock_guard lock(registry.mu);
  if (size > kFakeRanksMax) return nullptr;
  for (int i = 0; i < count; ++i)
    if (!registry.used.emplace(Hex(ids[i].bytes), rank).second) return nullptr;
  const std::string name = Hex(ids[0].bytes);
  std::shared_ptr<FakeClique> clique = registry.forming[name].lock();
  if (clique == nullptr) {
    const char* directory = getenv("FAKE_NCCL_DIR");
    const std::string path =
        directory != nullptr ? std::string(directory) + "/fake-nccl-" + name : std::string();
    int file = -1;
    if (!path.empty()) {
      file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return nullptr;
    }
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
             file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) return nullptr;
    clique.reset(new FakeClique(static_cast<Shared*>(memory), path));
    registry.forming[name] = clique;
  }
  Shared& shared = *clique->shared_;
  if (shared.members[rank].attached.exchange(1) != 0) return nullptr;
  shared.members[rank].host = HostKey();
  shared.size = static_cast<uint32_t>(size);
  if (shared.count.fetch_add(1) + 1 == static_cast<uint32_t>(size)) {
    if (!clique->path_.empty()) unlink(clique->path_.c_str());
    registry.forming.erase(name);
  }
  return clique;
}

FakeClique::~FakeClique() { munmap(shared_, sizeof(Shared)); }

int FakeClique::attached() const { return static_cast<int>(shared_->count.load()); }

bool FakeClique::ShrunkBy(uint64_t digest) {
  uint64_t first = 0;
  return shared_->shrunk_by.compare_exchange_strong(first, digest) || first == digest;
}

void FakeClique::SetDevice(int rank, uint32_t key) { shared_->members[rank].device_key = key + 1; }

bool FakeClique::OnOneHost(int a, int b) const {
  return shared_->members[a].host == shared_->members[b].host;
}

std::pair<int, int> FakeClique::SameDevice() const {
  for (int a = 0; a < kFakeRanksMax; ++a) {
    const uint32_t key = shared_->members[a].device_key;
    for (int b = a + 1; key != 0 && b < kFakeRanksMax; ++b)
      if (shared_->members[b].device_key == key) return {a, b};
  }
  return {-1, -1};
}

uint32_t FakeClique::AddWindow(int rank, const FakeWindow& window) {
  Shared::Member& member = shared_->members[rank];
  member.last_windows[(member.windows + 1) % 2] = window;
  return ++member.windows;
}

bool FakeClique::WindowIsMade(uint32_t number, const char** differs) const {
  *differs = nullptr;
  for (uint32_t r = 0; r < shared_->size; ++r)
    if (shared_->members[r].windows < number) return false;
  const FakeWindow& first = shared_->members[0].last_windows[number % 2];
  for (uint32_t r = 1; r < shared_->size; ++r) {
    const FakeWindow& other = shared_->members[r].last_windows[number % 2];
    if (other.bytes != first.bytes) *differs = "a window of different sizes";
    if (other.allocation != first.allocation) *differs = "a window of memory of different sizes";
    if (other.place != first.place)
      *differs = "a window at different places: ranks have deregistered different ones";
  }
  return true;
}

bool FakeClique::Barrier(int rank, const Aborted& aborted) {
  const uint32_t mine = ++shared_->members[rank].phase;
  Wake(shared_->members[rank].phase);
  for (uint32_t r = 0; r < shared_->size; ++r) {
    const std::atomic<uint32_t>& phase = shared_->members[r].phase;
    for (int round = 0;; ++round) {
      const uint32_t now = phase;
      if (static_cast<int32_t>(now - mine) >= 0) break;
      if (aborted()) return false;
      WaitWhile(phase, now, round);
    }
  }
  return true;
}

bool FakeClique::Agree(int rank, const FakeOperation& operation, const Aborted& aborted,
                       bool* equal) {
  shared_->members[rank].operation = operation;
  if (!Barrier(rank, aborted)) return false;
  *equal = true;
  for (uint32_t r = 0; r < shared_->size; ++r)
    *equal = *equal && shared_->members[r].operation == operation;
  return Barrier(rank, aborted);
}

bool FakeClique::Combine(int rank, DataType dtype, ReduceOp op, int root, const char* input,
                         char* output, size_t bytes, const Aborted& aborted) {
  auto bytes_of = [](char* data) { return reinterpret_cast<std::byte*>(data); };
  const int size = static_cast<int>(shared_->size.load());
  for (size_t done = 0; done < bytes; done += kFakeMailboxBytes) {
    const size_t part = std::min(bytes - done, kFakeMailboxBytes);
    const int64_t count = static_cast<int64_t>(part) / SizeOf(dtype);
    if (input != nullptr) std::memcpy(shared_->mailboxes[rank], input + done, part);
    if (!Barrier(rank, aborted)) return false;
    if (output != nullptr && op == ReduceOp::kNone)
      std::memcpy(output + done, shared_->mailboxes[root], part);
    if (output != nullptr && op != ReduceOp::kNone) {
      std::memcpy(output + done, shared_->mailboxes[0], part);
      for (int r = 1; r < size; ++r)
        Reduce(dtype, op, bytes_of(output + done), bytes_of(shared_->mailboxes[r]), count);
    }
    if (!Barrier(rank, aborted)) return false;
  }
  return true;
}

bool FakeClique::Move(int rank, FakeTransfer& transfer) {
  Shared::Pair& pair =
      transfer.send ? shared_->pairs[rank][transfer.peer] : shared_->pairs[transfer.peer][rank];
  if ((pair.full != 0) == transfer.send) return false;
  if (transfer.send) pair.bytes = static_cast<uint32_t>(std::min(transfer.bytes, kFakePairBytes));
  // A receiver that expects less than was sent would write beyond its buffer.
  const size_t part = std::min<size_t>(pair.bytes, transfer.bytes);
  if (transfer.send) {
    std::memcpy(pair.data, transfer.data, part);
  } else {
    std::memcpy(transfer.data, pair.data, part);
  }
  transfer.data += part;
  transfer.bytes -= part;
  pair.full = transfer.send ? 1 : 0;
  return true;
}

bool FakeClique::Exchange(int rank, std::vector<FakeTransfer> transfers, const Aborted& aborted) {
  FakeRest rest;
  for (bool left = true; left;) {
    left = false;
    bool moved = false;
    for (FakeTransfer& transfer : transfers) {
      if (transfer.bytes > 0) moved = Move(rank, transfer) || moved;
      left = left || transfer.bytes > 0;
    }
    if (moved) {
      rest = {};
    } else if (left) {
      if (aborted()) return false;
      rest.Once();
    }
  }
  return true;
}

}  // namespace coordd
