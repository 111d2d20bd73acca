// Comms as a C++17 program sees them, one of the workers that coordrun starts: every operation, on
// sizes around each change of algorithm, beside named collectives; then what is refused. With
// "die MICROSECONDS": what the others make of it when rank 0 is killed so much later; with
// "die-registering MICROSECONDS" the same while all map each other's memfds.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "coordd/coordd.hpp"
#include "tests/client/c_api/comm_check.h"

namespace {

using coordd::Comm;
using coordd::Op;
using coordd::View;

constexpr int64_t kCounts[] = {0, 1, 14, 128, 129, 5000, 100003, 750000};

void TestReductions(Comm& comm, int64_t count) {
  const int size = comm.size(), rank = comm.rank();
  Floats input = Input(rank, count), sum(input.size()), part(input.size());
  comm.Allreduce(input.data(), sum.data(), count, Op::kSum);
  CHECK(input == Input(rank, count));
  for (int64_t i = 0; i < count; ++i) CHECK(sum[static_cast<size_t>(i)] == SumAt(size, i));
  comm.Allreduce(input.data(), input.data(), count, Op::kAverage);
  for (int64_t i = 0; i < count; i += 97)
    CHECK(input[static_cast<size_t>(i)] == SumAt(size, i) * (1.f / static_cast<float>(size)));

  // The same calls again and again, on what is there by then.
  std::vector<int32_t> whole(input.size());
  for (int32_t round = 1; round <= 3; ++round) {
    std::fill(input.begin(), input.end(), static_cast<float>(round * (rank + 1)));
    comm.Allreduce(input.data(), input.data(), count, Op::kAverage);
    CHECK(input.empty() || input.back() == static_cast<float>(round * size * (size + 1) / 2) *
                                               (1.f / static_cast<float>(size)));
    std::fill(whole.begin(), whole.end(), round * 2);
    comm.Allreduce(whole.data(), whole.data(), count, Op::kAverage);
    CHECK(whole.empty() || whole.back() == round * 2);
  }

  Floats all = Input(rank, count * size);
  comm.Reducescatter(all.data(), part.data(), count, Op::kSum);
  for (int64_t i = 0; i < count; ++i)
    CHECK(part[static_cast<size_t>(i)] == SumAt(size, rank * count + i));
  comm.Reducescatter(all.data(), all.data() + rank * count, count, Op::kSum);
  CHECK(std::equal(part.begin(), part.end(), all.begin() + rank * count));
}

void TestMoves(Comm& comm, int64_t count) {
  const int size = comm.size(), rank = comm.rank();
  for (int root = 0; root < size; ++root) {
    Floats buffer = Input(rank, count);
    comm.Broadcast(buffer.data(), count, root);
    CHECK(buffer == Input(root, count));
  }
  const Floats input = Input(rank, count);
  Floats all(input.size() * static_cast<size_t>(size)), in_place(all.size());
  comm.Allgather(input.data(), all.data(), count);
  std::copy(input.begin(), input.end(), in_place.begin() + rank * count);
  comm.Allgather(in_place.data() + rank * count, in_place.data(), count);
  CHECK(in_place == all);
  const Floats mine = Input(rank, count * size);
  Floats theirs(mine.size());
  comm.Alltoall(mine.data(), theirs.data(), count);
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(r * count + i);
      CHECK(all[at] == Value(r, i) && theirs[at] == Value(r, rank * count + i));
    }
  }
}

// Lanes come and go; some are never used.
void TestManyComms(coordd::Worker& worker) {
  for (int i = 0; i < 40; ++i) {
    Comm first = worker.MakeComm("first"), second = worker.MakeComm("second");
    Comm* const order[] = {&first, &second};
    int32_t sum = 1;
    for (int j = 0; j < i % 3; ++j) {
      int32_t one = 1;
      order[j % 2]->Allreduce(&one, &sum, 1, Op::kSum);
      CHECK(sum == worker.size());
    }
  }
}

// A rank may make two at once, each rank in another order.
void TestMakingAtOnce(coordd::Worker& worker) {
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&worker, name = std::to_string((i + worker.rank()) % 3)] {
        Comm comm = worker.MakeComm(name);
        for (int32_t n = 0; n < 20; ++n) {
          int32_t sum = n + std::stoi(name);
          const int32_t expected = sum * comm.size();
          comm.Allreduce(&sum, &sum, 1, Op::kSum);
          CHECK(sum == expected);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

void TestBesideNames(coordd::Worker& worker, Comm& comm) {
  std::thread named([&worker] {
    for (int i = 0; i < 20; ++i) {
      Floats values(50000, 1.f);
      worker.Allreduce("named", View(values), Op::kSum);
      CHECK(values.back() == static_cast<float>(worker.size()));
    }
  });
  for (int i = 0; i < 200; ++i) {
    int64_t largest = comm.rank() * 1000 + i;
    comm.Allreduce(&largest, &largest, 1, Op::kMax);
    CHECK(largest == (comm.size() - 1) * 1000 + i);
    comm.Barrier();
  }
  named.join();
}

void TestSomeRanks(coordd::Worker& worker) {
  if (worker.size() < 3) return;
  const int32_t ranks[] = {0, 2};
  int32_t set = 0;
  CHECK(coordd_process_set_add(worker.handle(), ranks, 2, 60, &set) == COORDD_OK);
  if (worker.rank() == 1) {
    CHECK(worker.TryMakeComm("two", {}, set).code() == COORDD_INVALID_ARGUMENT);
  } else {
    Comm comm = worker.MakeComm("two", {}, set);
    CHECK(comm.size() == 2 && comm.rank() == worker.rank() / 2);
    TestReductions(comm, 20000);
    TestMoves(comm, 20000);
  }
  worker.Barrier();
  CHECK(coordd_process_set_remove(worker.handle(), set, 60) == COORDD_OK);
}

// Memory of coordd_alloc: mapped by the others or private, collectives work alike.
void TestMemory(coordd::Worker& worker, Comm& comm, bool maps) {
  const int size = comm.size(), rank = comm.rank();
  for (const int64_t count : {int64_t{1}, int64_t{129}, int64_t{100003}, int64_t{3000000}}) {
    coordd::Memory<float> input = worker.Allocate<float>(count);
    coordd::Memory<float> output = worker.Allocate<float>(count * size);
    CHECK(input[count - 1] == 0 && output[count * size - 1] == 0);
    CHECK(input.IsMapped().ok() == maps);
    for (int64_t i = 0; i < count; ++i) input[i] = Value(rank, i);
    comm.Allreduce(input.data(), output.data(), count, Op::kSum);
    for (int64_t i = 0; i < count; ++i) CHECK(output[i] == SumAt(size, i));
    comm.Allgather(input.data(), output.data(), count);
    for (int64_t i = 0; i < count * size; ++i)
      CHECK(output[i] == Value(static_cast<int>(i / count), i % count));
    comm.Reducescatter(output.data(), output.data() + rank * count, count, Op::kMax);
    for (int64_t i = 0; i < count; ++i) CHECK(output[rank * count + i] == Value(rank, i));
    comm.Broadcast(input.data(), count, size - 1);
    CHECK(input[count - 1] == Value(size - 1, count - 1));
    comm.Allreduce(input.data(), input.data(), count, Op::kMin);
    CHECK(input[count - 1] == Value(size - 1, count - 1));
    // By a name, with private memory on one side.
    Floats own(static_cast<size_t>(count), 1.f);
    if (rank == 0) {
      worker.Allreduce("in memory", View(own), Op::kSum);
    } else {
      std::fill(input.begin(), input.end(), 1.f);
      worker.Allreduce("in memory", View(input.data(), count), Op::kSum);
      std::copy(input.begin(), input.end(), own.begin());
    }
    CHECK(own.front() == static_cast<float>(size) && own.back() == static_cast<float>(size));
  }
  Floats elsewhere(10);
  coordd_worker_t* const handle = worker.handle();
  CHECK(coordd_register(handle, elsewhere.data(), 40) == COORDD_INVALID_ARGUMENT);
  CHECK(coordd_free(handle, elsewhere.data()) == COORDD_INVALID_ARGUMENT);
  void* memory = elsewhere.data();
  CHECK(coordd_alloc(handle, 0, &memory) == COORDD_INVALID_ARGUMENT && memory == nullptr);
  CHECK(coordd_alloc(handle, int64_t{1} << 50, &memory) == COORDD_RESOURCE_EXHAUSTED);
  CHECK(coordd_free(handle, nullptr) == COORDD_OK);
  memory = elsewhere.data();
  CHECK(coordd_alloc_device(0, 0, &memory) == COORDD_INVALID_ARGUMENT && memory == nullptr);
  CHECK(coordd_free_device(elsewhere.data()) == COORDD_INVALID_ARGUMENT);
  CHECK(coordd_free_device(nullptr) == COORDD_OK);
  coordd::Memory<char> block = worker.Allocate<char>(5000);
  const coordd_status_t inside = maps ? COORDD_OK : COORDD_FAILED_PRECONDITION;
  CHECK(coordd_register(handle, block.data() + 4000, 1000) == inside);
  CHECK(coordd_register(handle, block.data() + 4000, 1001) == COORDD_INVALID_ARGUMENT);
}

// A memfd, with the program's own view of it.
class File {
 public:
  explicit File(int64_t size_bytes, int seals = F_SEAL_SHRINK)
      : size_(static_cast<size_t>(size_bytes)),
        fd_(memfd_create("comm_test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    CHECK(fd_ >= 0 && ftruncate(fd_, size_bytes) == 0);
    CHECK(seals == 0 || fcntl(fd_, F_ADD_SEALS, seals) == 0);
    own_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    CHECK(own_ != MAP_FAILED);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    munmap(own_, size_);
    close(fd_);
  }
  int fd() const { return fd_; }
  float* own() const { return static_cast<float*>(own_); }

 private:
  const size_t size_;
  const int fd_;
  void* own_ = nullptr;
};

// The program's own memory takes part like coordd's, wherever the others' lies.
void TestFiles(coordd::Worker& worker, Comm& comm, bool maps) {
  const int size = comm.size(), rank = comm.rank();
  coordd_worker_t* const handle = worker.handle();
  const coordd_status_t inside = maps ? COORDD_OK : COORDD_FAILED_PRECONDITION;
  for (const int64_t count : {int64_t{1}, int64_t{100003}, int64_t{3000000}}) {
    constexpr int64_t kOffset = 8192;
    const int64_t bytes = 4 * count;
    const File file(kOffset + bytes + 4096 * rank);  // each of another size
    float* const memory = static_cast<float*>(worker.RegisterMemfd(file.fd(), kOffset, bytes));
    CHECK(coordd_register(handle, memory, bytes) == inside);
    CHECK(coordd_register(handle, memory, bytes + 1) == COORDD_INVALID_ARGUMENT);
    // What is written through the program's view is in both.
    float* const own = file.own() + kOffset / 4;
    for (int64_t i = 0; i < count; ++i) own[i] = Value(rank, i);
    coordd::Memory<float> output = worker.Allocate<float>(count);
    comm.Allreduce(memory, output.data(), count, Op::kSum);
    for (int64_t i = 0; i < count; ++i) CHECK(output[i] == SumAt(size, i));
    // Beside others' private memory.
    Floats elsewhere = Input(rank, count);
    float* const place = rank == 0 ? memory : elsewhere.data();
    comm.Allreduce(place, place, count, Op::kSum);
    for (int64_t i = 0; i < count; ++i) CHECK(place[i] == SumAt(size, i));
    CHECK(rank != 0 || own[count - 1] == SumAt(size, count - 1));
    worker.Unregister(memory);
    CHECK(coordd_unregister(handle, memory, 0) == COORDD_INVALID_ARGUMENT);
    CHECK(rank != 0 || own[count - 1] == SumAt(size, count - 1));  // the file is the program's
  }
}

// What others cannot map is refused on all, by whose it is, and harms nothing.
void TestRefusedFiles(coordd::Worker& worker, bool maps) {
  constexpr int64_t kBytes = 65536;
  const int rank = worker.rank();
  coordd_worker_t* const handle = worker.handle();
  const File good(kBytes), unsealed(kBytes, /*seals=*/0);
  const File fixed(kBytes, F_SEAL_SHRINK);
  const int readable = open(("/proc/self/fd/" + std::to_string(fixed.fd())).c_str(), O_RDONLY);
  const int directory = open("/", O_RDONLY);
  const auto refused = [&](int fd, int64_t offset, int64_t bytes, const char* why) {
    const int64_t own_bytes = rank == 1 ? bytes : kBytes;
    coordd::Expected<void*> made =
        worker.TryRegisterMemfd(rank == 1 ? fd : good.fd(), rank == 1 ? offset : 0, own_bytes);
    if (rank == 1) {
      CHECK(made.code() == COORDD_INVALID_ARGUMENT);
      CHECK(made.message().find(why) != std::string::npos);
    } else if (maps) {
      CHECK(made.code() == COORDD_FAILED_PRECONDITION);
      CHECK(made.message().find("rank 1: ") != std::string::npos);
    } else {
      worker.Unregister(made.value());
    }
  };
  refused(unsealed.fd(), 0, kBytes, "F_SEAL_SHRINK");
  refused(directory, 0, kBytes, "not a memfd");
  refused(-1, 0, kBytes, "not open");
  refused(readable, 0, kBytes, "writing");
  refused(good.fd(), 100, 4096, "multiple of 4096");
  refused(good.fd(), 4096, kBytes, "from offset 4096 on");
  refused(good.fd(), 0, 0, "at least 1");
  close(readable);
  close(directory);
  void* const memory = worker.RegisterMemfd(good.fd(), 0, kBytes);
  CHECK(coordd_free(handle, memory) == COORDD_INVALID_ARGUMENT);
  worker.Unregister(memory);
  coordd::Memory<float> allocated = worker.Allocate<float>(4);
  CHECK(coordd_unregister(handle, allocated.data(), 0) == COORDD_INVALID_ARGUMENT);
  CHECK(coordd_unregister(handle, nullptr, 0) == COORDD_OK);
}

void TestRefusals(coordd::Worker& worker, Comm& comm) {
  CHECK(worker.TryMakeComm("").code() == COORDD_INVALID_ARGUMENT);
  CHECK(worker.TryMakeComm("nowhere", {}, 99).code() == COORDD_INVALID_ARGUMENT);
  float values[4] = {1, 2, 3, 4};
  CHECK(comm.TryBroadcast(values, 4, comm.size()).code() == COORDD_INVALID_ARGUMENT);
  CHECK(comm.TryAllreduce<float>(nullptr, values, 4, Op::kSum).code() == COORDD_INVALID_ARGUMENT);
  CHECK(comm.TryAllreduce(values, values, -1, Op::kSum).code() == COORDD_INVALID_ARGUMENT);
  CHECK(comm.TryAllreduce(values, values, INT64_MAX, Op::kSum).code() == COORDD_INVALID_ARGUMENT);
  CHECK(comm.TryAllreduce(values, values + 1, 3, Op::kSum).code() == COORDD_INVALID_ARGUMENT);
  CHECK(coordd_comm_allreduce(comm.handle(), values, values, 4, 77, COORDD_SUM) ==
        COORDD_INVALID_ARGUMENT);
  CHECK(coordd_comm_allreduce(comm.handle(), values, values, 4, COORDD_FLOAT32, 77) ==
        COORDD_INVALID_ARGUMENT);
  CHECK(coordd_comm_barrier(nullptr) == COORDD_INVALID_ARGUMENT);
  std::vector<int64_t> counts(static_cast<size_t>(comm.size()), 0);
  CHECK(comm.TryAlltoallv<float>(values, nullptr, values, counts.data()).code() ==
        COORDD_INVALID_ARGUMENT);
  counts[0] = -1;
  CHECK(comm.TryAlltoallv<float>(values, counts.data(), values + 2, counts.data()).code() ==
        COORDD_INVALID_ARGUMENT);
  counts[0] = INT64_MAX;
  CHECK(comm.TryAlltoallv<float>(values, counts.data(), values + 2, counts.data()).code() ==
        COORDD_INVALID_ARGUMENT);
  counts[0] = 1;
  CHECK(comm.TryAlltoallv<float>(nullptr, counts.data(), values, counts.data()).code() ==
        COORDD_INVALID_ARGUMENT);
  CHECK(coordd_comm_create(worker.handle(), 0, "x", -1, nullptr) == COORDD_INVALID_ARGUMENT);
  comm.Barrier();  // it can still be used
  const pid_t child = fork();
  if (child == 0) _exit(comm.TryBarrier().code() == COORDD_FAILED_PRECONDITION ? 0 : 1);
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// A member that does not come: the others say who. Only over mapped memory, where the generation
// goes on.
void TestLateness(coordd::Worker& worker) {
  if (worker.size() == 1) return;
  Comm comm = worker.MakeComm("late", std::chrono::milliseconds(300));
  if (worker.rank() != 0) {
    const coordd::Expected<> late = comm.TryBarrier();
    CHECK(late.code() == COORDD_DEADLINE_EXCEEDED);
    CHECK(late.message().find("rank 0") != std::string::npos);
    CHECK(comm.TryBarrier().code() == COORDD_FAILED_PRECONDITION);
  }
  worker.Barrier();
}

// Whoever waits long for a neighbour sleeps until that wakes it: a few hundred times a second it
// would look by itself. Counted by the system, whatever else the machine does.
void TestLongWait(coordd::Worker& worker, Comm& comm) {
  if (worker.size() == 1) return;
  const auto wake_ups = [] {
    rusage usage = {};
    CHECK(getrusage(RUSAGE_THREAD, &usage) == 0);
    return usage.ru_nvcsw;
  };
  comm.Barrier();
  const auto began = std::chrono::steady_clock::now();
  if (worker.rank() == 0) {
    while (std::chrono::steady_clock::now() - began < std::chrono::milliseconds(500)) {
    }
    comm.Barrier();
    return;
  }
  const long before = wake_ups();
  comm.Barrier();
  const std::chrono::milliseconds waited = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - began);
  CHECK(wake_ups() - before < 20 + waited.count() / 4);
}

void KillMyselfAfter(int microseconds) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer = {};
  CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
  const itimerspec once = {{0, 0}, {0, microseconds * 1000L + 1}};
  CHECK(timer_settime(timer, 0, &once, nullptr) == 0);
}

// Rank 0 is killed at some instant while the others are in calls.
int DieAtSomeInstant(coordd::Worker& worker, int instant) {
  Comm comm = worker.MakeComm("dying");
  const int64_t count = instant % 2 == 0 ? 3 : 1000000;
  coordd::Memory<float> values = worker.Allocate<float>(count + 1);
  values[count] = 7.f;
  // Behind it all have a comm.
  coordd::Expected<> done = comm.TryBarrier();
  if (worker.rank() == 0) KillMyselfAfter(instant);
  while (done.ok()) done = comm.TryAllreduce(values.data(), values.data(), count, Op::kSum);
  CHECK(done.message().find("rank 0") != std::string::npos);
  CHECK(done.code() == COORDD_ABORTED || done.code() == COORDD_GENERATION_CHANGED);
  CHECK(comm.TryBarrier().code() == done.code());
  if (!worker.status().ok() && worker.status().code() != COORDD_GENERATION_CHANGED) return 0;
  const coordd_placement_t next = worker.AwaitGeneration(std::chrono::seconds(60));
  CHECK(next.size == 2 && next.generation == 2);
  CHECK(comm.TryBarrier().code() == COORDD_GENERATION_CHANGED);  // it stays that of the first
  Comm again = worker.MakeComm("dying");
  // Nobody else has it any more, with what was in it.
  CHECK(!values.IsMapped().ok() && values[count] == 7.f);
  const Floats ones(static_cast<size_t>(count), 1.f);
  again.Allreduce(ones.data(), values.data(), count, Op::kSum);
  CHECK(values[0] == 2.f && values[count - 1] == 2.f && values[count] == 7.f);
  coordd::Memory<float> anew = worker.Allocate<float>(count);
  CHECK(anew.IsMapped().ok() == (std::string(std::getenv("COORDD_TRANSPORT")) != "shm"));
  again.Allreduce(ones.data(), anew.data(), count, Op::kSum);
  CHECK(anew[0] == 2.f && anew[count - 1] == 2.f);
  worker.Barrier();
  return 0;
}

// As DieAtSomeInstant, while files are mapped and given back.
int DieRegistering(coordd::Worker& worker, int instant) {
  constexpr int64_t kBytes = int64_t{1} << 20;
  const File file(kBytes), kept(kBytes);
  float* const memory = static_cast<float*>(worker.RegisterMemfd(kept.fd(), 0, kBytes));
  memory[1] = 7.f;
  // Behind it all have `kept`. Rank 0 may be gone before the others hear of its end.
  const coordd::Expected<> all_here = worker.TryBarrier();
  if (worker.rank() == 0) KillMyselfAfter(instant);
  while (all_here.ok()) {
    const coordd::Expected<void*> made = worker.TryRegisterMemfd(file.fd(), 0, kBytes);
    if (!made.ok() || !worker.TryUnregister(made.value()).ok()) break;
  }
  const coordd_placement_t next = worker.AwaitGeneration(std::chrono::seconds(60));
  CHECK(next.size == 2 && next.generation == 2);
  const bool maps = std::string(std::getenv("COORDD_TRANSPORT")) != "shm";
  // A private copy, of a file that is still the program's, where others had it.
  CHECK(memory[1] == 7.f && kept.own()[1] == 7.f);
  memory[1] = 8.f;
  CHECK(kept.own()[1] == (maps ? 7.f : 8.f));
  kept.own()[1] = 7.f;
  CHECK(coordd_register(worker.handle(), memory, kBytes) == COORDD_FAILED_PRECONDITION);
  worker.Unregister(memory);
  Comm comm = worker.MakeComm("again");
  float* const anew = static_cast<float*>(worker.RegisterMemfd(kept.fd(), 0, kBytes));
  CHECK(coordd_register(worker.handle(), anew, kBytes) ==
        (maps ? COORDD_OK : COORDD_FAILED_PRECONDITION));
  comm.Allreduce(anew, anew, kBytes / 4, Op::kSum);
  CHECK(anew[0] == 0.f && anew[1] == 14.f && kept.own()[1] == 14.f);
  worker.Barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    coordd::Worker worker = coordd::Worker::Start();
    if (argc == 3 && std::string(argv[1]) == "die")
      return DieAtSomeInstant(worker, std::atoi(argv[2]));
    if (argc == 3 && std::string(argv[1]) == "die-registering")
      return DieRegistering(worker, std::atoi(argv[2]));
    Comm comm = worker.MakeComm("test");
    CHECK(comm.size() == worker.size() && comm.rank() == worker.rank());
    for (const int64_t count : kCounts) {
      TestReductions(comm, count);
      TestMoves(comm, count);
    }
    TestManyComms(worker);
    TestMakingAtOnce(worker);
    TestBesideNames(worker, comm);
    TestSomeRanks(worker);
    TestRefusals(worker, comm);
    const bool maps = argc == 2 && std::string(argv[1]) == "auto";
    TestMemory(worker, comm, maps);
    TestFiles(worker, comm, maps);
    if (worker.size() > 1) TestRefusedFiles(worker, maps);
    // Who checks its results moves them by messages.
    if (maps && std::getenv("COORDD_CHECK_RESULTS") == nullptr) {
      TestLateness(worker);
      TestLongWait(worker, comm);
    }
    worker.Barrier();
    worker.Shutdown(std::chrono::seconds(10));
    CHECK(!comm.TryBarrier().ok());  // outlives it
  } catch (const coordd::Error& error) {
    std::fprintf(stderr, "comm_test: %s: %s\n", error.code_name(), error.what());
    return 1;
  }
  return 0;
}
