// Calls of a comm that do not wait, or not to their end, and members that leave, as a C++17 program
// sees them, one of the workers that coordrun starts.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordd/coordd.hpp"
#include "tests/client/c_api/comm_check.h"

namespace {

using coordd::Comm;
using coordd::Op;

// What is started runs in the order of the comm, before what is called behind it, whoever waits for
// what.
void TestStarting(Comm& comm) {
  const int size = comm.size(), rank = comm.rank();
  std::vector<int64_t> values(200, rank + 1);
  std::vector<coordd::Work> works;
  for (int64_t& value : values) works.push_back(comm.AllreduceAsync(&value, &value, 1, Op::kSum));
  for (int64_t& value : values) works.push_back(comm.AllreduceAsync(&value, &value, 1, Op::kMax));
  int64_t last = rank;
  comm.Allreduce(&last, &last, 1, Op::kMax);  // behind them
  CHECK(last == size - 1);
  for (const coordd::Work& work : works) CHECK(work.done());
  for (const int64_t value : values) CHECK(value == size * (size + 1) / 2);

  works.clear();
  Floats large = Input(rank, 750000), all(large.size() * static_cast<size_t>(size)), part(10);
  works.push_back(comm.AllgatherAsync(large.data(), all.data(), 750000));
  works.push_back(comm.AllreduceAsync(large.data(), large.data(), 750000, Op::kSum));
  works.push_back(comm.ReducescatterAsync(all.data(), part.data(), 10, Op::kMin));
  works.push_back(comm.BroadcastAsync(large.data(), 750000, size - 1));
  works.push_back(comm.BarrierAsync());
  Floats mine(static_cast<size_t>(size), static_cast<float>(rank)), theirs(mine.size());
  works.push_back(comm.AlltoallAsync(mine.data(), theirs.data(), 1));
  Floats from_all(static_cast<size_t>(size * (rank + 1)));
  {  // their splits are not needed any more
    std::vector<int64_t> sent, received(static_cast<size_t>(size), rank + 1);
    for (int r = 0; r < size; ++r) sent.push_back(r + 1);
    works.push_back(comm.AlltoallvAsync(all.data(), sent.data(), from_all.data(), received.data()));
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->Wait();
  for (int64_t i = 0; i < 750000; i += 97) {
    CHECK(large[static_cast<size_t>(i)] == SumAt(size, i));
    CHECK(all[static_cast<size_t>((size - 1) * 750000 + i)] == Value(size - 1, i));
  }
  for (int r = 0; r < size; ++r) CHECK(theirs[static_cast<size_t>(r)] == static_cast<float>(r));
  CHECK(from_all.front() == Value(0, rank * (rank + 1) / 2));  // all have the same to send
  CHECK(works.back().Result().shape[0] == size * (rank + 1));
  CHECK(part[0] == Value(0, rank * 10));
  const coordd_result_t result = works[0].Result();
  CHECK(result.size == size && result.ndim == 1 && result.shape[0] == 750000 * size);
  CHECK(result.output == all.data());
  CHECK(comm.TryAllreduceAsync<float>(nullptr, part.data(), 1, Op::kSum).code() ==
        COORDD_INVALID_ARGUMENT);
  CHECK(coordd_comm_barrier_async(comm.handle(), nullptr) == COORDD_INVALID_ARGUMENT);
}

// Rank r sends (r + to) % 3 * unit elements, which begin with their sum.
void TestSplits(Comm& comm, int64_t unit, bool maps) {
  const int size = comm.size(), rank = comm.rank();
  std::vector<int64_t> sent, received;
  Floats input;
  for (int other = 0; other < size; ++other) {
    sent.push_back((rank + other) % 3 * unit);
    received.push_back((other + rank) % 3 * unit);
    for (int64_t i = 0; i < sent.back(); ++i) input.push_back(Value(rank, other * unit + i));
  }
  Floats output(input.size());
  comm.Alltoallv(input.data(), sent.data(), output.data(), received.data());
  size_t at = 0;
  for (int other = 0; other < size; ++other) {
    for (int64_t i = 0; i < received[static_cast<size_t>(other)]; ++i)
      CHECK(output[at++] == Value(other, rank * unit + i));
  }
  CHECK(at == output.size());
  if (!maps || size == 1) return;
  // Rank 1 expects one more of rank 0 than is sent: nobody else hears of it, and the comm goes on.
  if (rank == 1) {
    ++received[0];
    output.resize(output.size() + 1);
  }
  const auto done = comm.TryAlltoallv(input.data(), sent.data(), output.data(), received.data());
  CHECK(done.code() == (rank == 1 ? COORDD_INVALID_ARGUMENT : COORDD_OK));
  if (rank == 1) {
    const std::string bytes = std::to_string(4 * sent[0]);
    CHECK(done.message().find("member 1 of the group has received " + bytes +
                              " bytes from member 0, expected " +
                              std::to_string(4 * sent[0] + 4)) != std::string::npos);
  }
  comm.Barrier();
}

// Messages match by sender and tag, in their order, whatever their sizes; a wrong one is an error
// on both sides, and the next one is received.
void TestMessages(Comm& comm) {
  const int size = comm.size(), rank = comm.rank();
  if (size == 1) return;
  const int right = (rank + 1) % size, left = (rank + size - 1) % size;
  for (const int64_t count : {int64_t{0}, int64_t{3}, int64_t{300}, int64_t{1000003}}) {
    Floats first = Input(rank, count), second = Input(rank + 1, count), other(first.size()),
           in(first.size());
    std::vector<coordd::Work> works;
    works.push_back(comm.SendAsync(first.data(), count, right, 1));
    works.push_back(comm.SendAsync(second.data(), count, right, 2));
    works.push_back(comm.SendAsync(first.data(), count, right, 2));
    comm.ReceiveAsync(in.data(), count, left, 2).Wait();
    CHECK(in == Input(left + 1, count));
    works.push_back(comm.ReceiveAsync(other.data(), count, left, 2));
    comm.ReceiveAsync(in.data(), count, COORDD_ANY_SOURCE, 1).Wait();
    CHECK(in == Input(left, count));
    for (coordd::Work& work : works) work.Wait();
    CHECK(other == Input(left, count));
  }
  Floats wrong(1000), none(7), in_vain(7);
  coordd::Work sent = comm.SendAsync(wrong.data(), 1000, right, 3);
  coordd::Work received = comm.ReceiveAsync(none.data(), 7, left, 3);
  CHECK(received.TryWait().code() == COORDD_INVALID_ARGUMENT);
  CHECK(sent.TryWait().code() == COORDD_INVALID_ARGUMENT);
  coordd::Work any = comm.ReceiveAsync(none.data(), 7, COORDD_ANY_SOURCE, 4);
  comm.SendAsync(none.data(), 7, right, 4).Wait();
  any.Wait();
  CHECK(any.Result().num_received_splits == 1 && any.Result().received_splits[0] == left);
  coordd::Work given_up = comm.ReceiveAsync(in_vain.data(), 7, left, 5);
  comm.Withdraw(given_up);
  CHECK(given_up.TryWait().code() == COORDD_CANCELLED);
  CHECK(coordd_comm_withdraw(nullptr, given_up.handle()) == COORDD_INVALID_ARGUMENT);
  CHECK(coordd_comm_withdraw(comm.handle(), nullptr) == COORDD_INVALID_ARGUMENT);
  CHECK(comm.TrySendAsync(none.data(), 7, rank, 4).code() == COORDD_INVALID_ARGUMENT);
  CHECK(comm.TryReceiveAsync<float>(nullptr, 7, left, 4).code() == COORDD_INVALID_ARGUMENT);
}

// More than anybody waits for one by one.
void TestTenThousand(Comm& comm) {
  std::vector<int32_t> values(10000);
  std::vector<coordd::Work> works;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(i);
    works.push_back(comm.AllreduceAsync(&values[i], &values[i], 1, Op::kSum));
  }
  works.back().Wait();
  for (size_t i = 0; i < values.size(); ++i)
    CHECK(values[i] == static_cast<int32_t>(i) * comm.size());
}

// A callback may start calls of its comm, and wait for what other callbacks do.
struct Chain {
  Comm* comm = nullptr;
  int32_t value = 1;
  int depth = 0;
  coordd::Work next;
  std::promise<int32_t> ended;
};

void CallAgain(void* user, coordd_status_t status, const char*) {
  Chain& chain = *static_cast<Chain*>(user);
  CHECK(status == COORDD_OK);
  std::promise<int32_t> ended = std::move(chain.ended);  // behind which the chain may be gone
  if (chain.depth == 3) return ended.set_value(chain.value);
  Chain inner;
  inner.comm = chain.comm;
  inner.value = chain.value;
  inner.depth = chain.depth + 1;
  std::future<int32_t> last = inner.ended.get_future();
  inner.next = inner.comm->AllreduceAsync(&inner.value, &inner.value, 1, Op::kSum);
  CHECK(coordd_work_on_complete(inner.next.handle(), CallAgain, &inner) == COORDD_OK);
  ended.set_value(last.get());
}

void TestCallbacks(Comm& comm) {
  for (int round = 0; round < 20; ++round) {
    Chain chain;
    chain.comm = &comm;
    std::future<int32_t> last = chain.ended.get_future();
    chain.next = comm.AllreduceAsync(&chain.value, &chain.value, 1, Op::kSum);
    CHECK(coordd_work_on_complete(chain.next.handle(), CallAgain, &chain) == COORDD_OK);
    const int size = comm.size();
    CHECK(last.get() == size * size * size * size);
  }
}

// A call that comes back before its end goes on, and its comm ends behind it; what has not begun is
// cancelled.
void TestSlices(coordd::Worker& worker) {
  if (worker.size() == 1) return;
  Comm comm = worker.MakeComm("sliced");
  int32_t sum = 1;
  if (worker.rank() == 0) {
    worker.Barrier();  // the others have come back
    comm.Allreduce(&sum, &sum, 1, Op::kSum);
    comm.Barrier();
  } else {
    coordd_work_t* handle = nullptr;
    CHECK(coordd_comm_allreduce_for(comm.handle(), &sum, &sum, 1, COORDD_INT32, COORDD_SUM, 0.01,
                                    &handle) == COORDD_DEADLINE_EXCEEDED);
    const coordd::Work first(handle);
    CHECK(first.TryWaitFor(std::chrono::milliseconds(10)).code() == COORDD_DEADLINE_EXCEEDED);
    worker.Barrier();
    first.Wait();
    coordd_work_t* none = handle;
    CHECK(coordd_comm_barrier_for(comm.handle(), 60, &none) == COORDD_OK && none == nullptr);
  }
  CHECK(sum == worker.size());
  if (worker.rank() == 0) {
    worker.Barrier();
    comm.Barrier();
    return;
  }
  coordd_work_t* handle = nullptr;
  CHECK(coordd_comm_barrier_for(comm.handle(), 0.01, &handle) == COORDD_DEADLINE_EXCEEDED);
  const coordd::Work begun(handle), waits = comm.BarrierAsync();
  std::thread ending([&comm] { comm = Comm(); });
  CHECK(waits.TryWait().code() == COORDD_CANCELLED);
  worker.Barrier();
  begun.Wait();
  ending.join();
}

// Who waits for one that has freed its handle of the comm, or for whom a call of it has failed,
// hears so long before the timeout.
void TestDesertion(coordd::Worker& worker) {
  const bool deserts = worker.rank() == worker.size() - 1;
  const std::string who = "rank " + std::to_string(worker.size() - 1);
  Comm left = worker.MakeComm("left"), failed = worker.MakeComm("failed");
  Floats large(750000);
  left.Barrier();
  if (deserts) {
    left = Comm();
    // Roots that differ: of what is large one of the two learns of it from the call itself.
    CHECK(failed.TryBroadcast(large.data(), 750000, worker.rank()).code() != COORDD_OK);
  } else {
    const coordd::Expected<> alone = left.TryBarrier();
    CHECK(alone.code() == COORDD_ABORTED);
    CHECK(alone.message().find("barrier number 2: " + who + " has left the comm") !=
          std::string::npos);
    CHECK(failed.TryBroadcast(large.data(), 750000, worker.rank()).code() != COORDD_OK);
  }
  worker.Barrier();
}

// Who leaves ends the generation, but not what it has done its part of, nor what does not need it.
void TestLeaving(coordd::Worker& worker) {
  const int32_t others[] = {1, 2};
  int32_t set = 0;
  CHECK(coordd_process_set_add(worker.handle(), others, 2, 60, &set) == COORDD_OK);
  Comm comm = worker.MakeComm("left"), pair;
  if (worker.rank() != 0) pair = worker.MakeComm("pair", {}, set);
  int32_t value = worker.rank() == 0 ? 42 : 0;
  worker.Barrier();
  if (worker.rank() == 0) {
    comm.Broadcast(&value, 1, 0);
    worker.Shutdown(std::chrono::seconds(10));
    return;
  }
  while (worker.status().ok()) std::this_thread::yield();
  comm.Broadcast(&value, 1, 0);
  CHECK(value == 42);
  int32_t sum = worker.rank();
  pair.Allreduce(&sum, &sum, 1, Op::kSum);
  CHECK(sum == 3);
  const coordd::Expected<> more = comm.TryBarrier();
  CHECK(more.code() == COORDD_ABORTED && more.message().find("rank 0") != std::string::npos);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    coordd::Worker worker = coordd::Worker::Start();
    const bool maps = argc == 2 && std::string(argv[1]) == "auto";
    const bool nodes = argc == 2 && std::string(argv[1]) == "nodes";
    CHECK(!nodes || worker.local_size() == 1);
    {
      Comm comm = worker.MakeComm("test");
      TestStarting(comm);
      for (const int64_t unit : {1, 7, 300, 100000}) TestSplits(comm, unit, maps);
      TestMessages(comm);
      TestTenThousand(comm);
      TestCallbacks(comm);
    }
    TestSlices(worker);
    if (worker.size() > 1 && maps) TestDesertion(worker);
    worker.Barrier();
    if (worker.size() == 3 && maps) TestLeaving(worker);
    worker.Shutdown(std::chrono::seconds(10));
  } catch (const coordd::Error& error) {
    std::fprintf(stderr, "comm_started_test: %s: %s\n", error.code_name(), error.what());
    return 1;
  }
  return 0;
}
