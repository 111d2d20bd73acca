// coordd.hpp as a C++17 program sees it, one of the workers that coordrun starts.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordd/coordd.hpp"
#include "coordd/process_sets.hpp"
#include "coordd/store.hpp"

namespace {

using coordd::Op;
using coordd::View;

void Check(bool good, const char* what, int line) {
  if (good) return;
  std::fprintf(stderr, "cpp_api_test.cc:%d: %s does not hold\n", line, what);
  std::exit(1);
}
#define CHECK(condition) Check((condition), #condition, __LINE__)

static_assert(coordd::DtypeOf<float>() == COORDD_FLOAT32);
static_assert(coordd::DtypeOf<const double>() == COORDD_FLOAT64);
static_assert(coordd::DtypeOf<bool>() == COORDD_BOOL);
static_assert(coordd::DtypeOf<unsigned char>() == COORDD_UINT8);
static_assert(coordd::DtypeOf<long>() == COORDD_INT64);
static_assert(coordd::DtypeOf<long long>() == COORDD_INT64);
static_assert(coordd::DtypeOf<uint16_t>() == COORDD_UINT16);
static_assert(coordd::DtypeOf<coordd::Bfloat16>() == COORDD_BFLOAT16);
static_assert(coordd::DtypeOf<coordd::Float8E4m3fn>() == COORDD_FLOAT8_E4M3FN);
static_assert(coordd::DtypeOf<coordd::Float8E5m2>() == COORDD_FLOAT8_E5M2);
static_assert(coordd::DtypeOf<std::string>() == 0);
static_assert(!std::is_copy_constructible_v<coordd::Worker>);

void TestReductions(coordd::Worker& worker) {
  const int size = worker.size();
  std::vector<float> values = {1, 2, 3};
  worker.Allreduce("values", View(values), Op::kSum);
  CHECK(values == (std::vector<float>{1.f * size, 2.f * size, 3.f * size}));
  coordd::CallOptions options;
  options.prescale_factor = 0.5;
  std::vector<double> half = {4};
  worker.Allreduce("half", View(half), Op::kAverage, options);
  CHECK(half[0] == 2);
  std::vector<int32_t> a = {worker.rank()}, b = {-worker.rank()};
  worker.GroupedAllreduce<int32_t>("pair", {{"a", View(a)}, {"b", View(b)}}, Op::kMin);
  CHECK(a[0] == 0 && b[0] == -(size - 1));
}

void TestMoves(coordd::Worker& worker) {
  const int rank = worker.rank(), size = worker.size();
  std::vector<int64_t> value = {rank == 0 ? 42 : 0};
  worker.Broadcast("value", View(value), 0);
  CHECK(value[0] == 42);

  const std::vector<int64_t> mine(static_cast<size_t>(rank + 1), rank);
  const auto all = worker.Allgather("mine", View(mine));
  CHECK(all.view().size() == size * (size + 1) / 2);
  CHECK(std::accumulate(all.view().begin(), all.view().end(), int64_t{0}) ==
        (size - 1) * size * (size + 1) / 3);

  std::vector<double> matrix(static_cast<size_t>(2 * size), 1.0);
  const auto rows =
      worker.Reducescatter("matrix", View<double>(matrix.data(), {size, 2}), Op::kSum);
  CHECK(rows.view().shape() == (std::vector<int64_t>{1, 2}));
  CHECK(rows.view()[1] == size);

  std::vector<uint8_t> letters(static_cast<size_t>(size), static_cast<uint8_t>('a' + rank));
  const auto exchanged = worker.Alltoall("letters", View(letters));
  for (int r = 0; r < size; ++r) CHECK(exchanged.view()[r] == 'a' + r);
  CHECK(exchanged.received_splits() == std::vector<int64_t>(static_cast<size_t>(size), 1));
  worker.Barrier();
}

void TestSomeRanks(coordd::Worker& worker) {
  const int rank = worker.rank(), size = worker.size(), last = size - 1;
  std::vector<uint32_t> value = {static_cast<uint32_t>(rank)};
  worker.Reduce("largest", View(value), last, Op::kMax);
  CHECK(value[0] == static_cast<uint32_t>(rank == last ? last : rank));
  const auto gathered = worker.Gather("gathered", View(value), 0);
  CHECK(gathered.view().size() == (rank == 0 ? size : 0));
  if (size > 1) {
    const int set = worker.AddProcessSet({last});
    CHECK(worker.ProcessSetRanks(set) == std::vector<int32_t>{last});
    coordd::CallOptions options;
    options.process_set = set;
    if (rank == last) worker.Allreduce("alone", View(value), Op::kSum, options);
    CHECK(worker.TryAllreduceAsync("alone", View(value), Op::kSum, options).ok() == (rank == last));
    worker.RemoveProcessSet(set);
    if (rank == 0) worker.Send("message", View<const uint32_t>(value), last);
    if (rank == last) {
      worker.Receive("message", View(value), 0);
      CHECK(value[0] == 0);
    }
  }
  CHECK(worker.Join() < size);
}

void TestSetsOfMembersAlone(coordd::Worker& worker) {
  const std::vector<int32_t> own = {worker.rank()};
  const int set = coordd::AddProcessSetOfMembers(worker, "own " + std::to_string(worker.rank()),
                                                 own, std::chrono::seconds(10));
  CHECK(worker.ProcessSetRanks(set) == own);
  worker.RemoveProcessSet(set, std::chrono::seconds(10));
  CHECK(coordd::TryAddProcessSetOfMembers(worker, "", own).code() == COORDD_INVALID_ARGUMENT);
}

void TestErrors(coordd::Worker& worker) {
  std::vector<float> value = {1};
  coordd::Expected<coordd::Work> refused =
      worker.TryBroadcastAsync("refused", View(value), worker.size());
  CHECK(!refused.ok() && refused.code() == COORDD_INVALID_ARGUMENT);
  CHECK(refused.message().find("refused") != std::string::npos);
  try {
    worker.Broadcast("refused", View(value), worker.size());
    CHECK(false);
  } catch (const coordd::Error& error) {
    CHECK(error.code() == COORDD_INVALID_ARGUMENT);
    CHECK(std::string(error.code_name()) == "INVALID_ARGUMENT");
  }
  CHECK(worker.TryStoreGet("nobody sets this", std::chrono::milliseconds(20)).code() ==
        COORDD_DEADLINE_EXCEEDED);
  worker.TryStoreSet("key", std::string("a\0b", 3), std::chrono::seconds(10)).value();
  CHECK(worker.TryStoreGet("key", std::chrono::seconds(10)).value() == std::string("a\0b", 3));
}

void TestStore(coordd::Worker& worker) {
  coordd::Store store(worker, std::chrono::seconds(10));
  const std::string key = "of rank " + std::to_string(worker.rank());
  CHECK(!store.Check({key}));
  store.Set(key, std::string("a\0b", 3));
  CHECK(store.Get(key) == std::string("a\0b", 3) && store.Check({key}));
  CHECK(store.Append(key, "cd") == 5);
  CHECK(store.CompareSet(key, "not this", "other") == std::string("a\0bcd", 5));
  CHECK(store.CompareSet(key, std::string("a\0bcd", 5), "new") == "new");
  CHECK(store.CompareSet(key + " made", std::nullopt, "first") == "first");
  CHECK(store.TryCompareSet(key + " missing", "a", "b").code() == COORDD_NOT_FOUND);
  CHECK((store.GetAll({key, key + " made"}) == std::vector<std::string>{"new", "first"}));
  const std::string long_value(size_t{60} << 10, 'x');
  store.Set(key + " made", long_value);
  CHECK((store.GetAll({key + " made", key, key + " made"}) ==
         std::vector<std::string>{long_value, "new", long_value}));
  CHECK(store.Count(key) == 2);
  CHECK(store.Delete(key) && !store.Delete(key));
  worker.Barrier();
  CHECK(store.Add("together", 2) % 2 == 0);
  worker.Barrier();
  CHECK(store.Add("together", 0) == 2 * worker.size());
  coordd::Store hasty(worker, std::chrono::milliseconds(20));
  CHECK(hasty.TryGet("nobody sets this").code() == COORDD_DEADLINE_EXCEEDED);
}

}  // namespace

int main() {
  coordd_options_t nowhere = COORDD_OPTIONS_INIT;
  nowhere.ignore_environment = 1;
  CHECK(coordd::Worker::TryStart(&nowhere).code() == COORDD_INVALID_ARGUMENT);
  try {
    coordd::Worker worker = coordd::Worker::Start();
    CHECK(worker.placement().size == worker.size());
    TestReductions(worker);
    TestMoves(worker);
    TestSomeRanks(worker);
    TestSetsOfMembersAlone(worker);
    TestErrors(worker);
    TestStore(worker);
    coordd::Worker moved = std::move(worker);
    CHECK(moved.status().ok() && worker.handle() == nullptr);
    moved.Barrier();  // who leaves earlier ends the generation of the others
    moved.Shutdown(std::chrono::seconds(10));
  } catch (const coordd::Error& error) {
    std::fprintf(stderr, "cpp_api_test: %s: %s\n", error.code_name(), error.what());
    return 1;
  }
  return 0;
}
