// A rank of a job whose tensors are in GPU memory, for gpu_test.py (over the stand-ins of CUDA's
// driver and NCCL) and for tests/gpu/run (over real ones). Knows the library by its C interface
// alone; the driver is opened as the library opens it.
//
//   collectives STEPS    every collective, several steps, results checked; every type, once
//   set                  an allreduce in a process set of ranks 0 and 1 behind one of all; when
//                        that fails, both again in the next generation
//   train [STEP]         allreduces in place, enqueued one behind the other without a wait for the
//                        device, until one fails; at STEP this rank kills itself. With
//                        COORDD_ON_FAILURE=raise the others go on in the next generation
//   drain                allreduces, each a commit, until a rank leaves; the others go on
//   graphs LAUNCHES, train-graphs [STEP], stuck 0|1, different-graphs: see gpu_graphs.h
//   rhythms STEPS        gradients that repeat, and what comes between them (gpu_rhythms.h)
//   stand RANK FILE      a kernel of the program's on that rank lasts until FILE is there
//   wait NAME            one allreduce of that name; says how it ended (both gpu_stands.h)
//   beside TIMES 0|1 WORD...  coordd's calls beside NCCL groups of the program's own (gpu_beside.h)
//   windows [BYTES]      memory that is registered and unregistered in turn (gpu_memory.h)
//   host-and-device      the lowest rank submits memory of the host, the others of a device
//
// The first argument is the device (-1: the local rank's). Prints "ok ..." or the error; the
// stand-in of NCCL, where it is loaded, says whether a rule of NCCL was broken and how many calls
// there were.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "coordd/coordd.h"
#include "tests/integration/gpu_averages.h"
#include "tests/integration/gpu_beside.h"
#include "tests/integration/gpu_drain.h"
#include "tests/integration/gpu_every_type.h"
#include "tests/integration/gpu_graphs.h"
#include "tests/integration/gpu_memory.h"
#include "tests/integration/gpu_rank.h"
#include "tests/integration/gpu_rhythms.h"
#include "tests/integration/gpu_sets.h"
#include "tests/integration/gpu_stands.h"
#include "worker/numeric/float8.h"

namespace coordd {
namespace {

using Rank = RankOnDevice;

constexpr int kStepsAfterwards = 20;

float SumOfRanks(const Rank& r) { return static_cast<float>(r.size() * (r.size() + 1) / 2); }

void Allreduce(Rank& r) {
  const int64_t shape[] = {1000};
  float* const data = r.Upload(Filled(1000, static_cast<float>(r.rank() + 1)));
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  options.prescale_factor = 2;
  coordd_work_t* work = nullptr;
  coordd_tensor_t tensor = r.Tensor("sum", COORDD_FLOAT32, data, data, shape);
  RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, &options, &work), "submit");
  r.Finish(work);
  coordd_work_release(work);
  Expect(r.Download<float>(data, 1000), Filled(1000, 2 * SumOfRanks(r)), "allreduce");
}

// Packed by kernels: sizes that are no multiples of anything; an average, which is scaled.
void GroupedAllreduce(Rank& r) {
  constexpr int64_t kShapes[] = {1, 7, 1000, 4097, 100000};
  constexpr size_t kCount = std::size(kShapes);
  const char* const names[] = {"g0", "g1", "g2", "g3", "g4"};
  std::vector<coordd_tensor_t> tensors;
  std::vector<float*> places;
  for (size_t i = 0; i < kCount; ++i) {
    places.push_back(r.Upload(
        Filled(static_cast<size_t>(kShapes[i]),
               static_cast<float>((r.rank() + 1) * (static_cast<int>(i) + 1) * r.size()))));
    tensors.push_back(r.Tensor(names[i], COORDD_FLOAT32, places[i], places[i], &kShapes[i]));
  }
  coordd_work_t* works[kCount] = {};
  RequireOk(coordd_grouped_allreduce_async(r.worker(), "group", tensors.data(), kCount,
                                           COORDD_AVERAGE, nullptr, works),
            "submit a group");
  for (size_t i = 0; i < kCount; ++i) {
    r.Finish(works[i]);
    coordd_work_release(works[i]);
    Expect(r.Download<float>(places[i], static_cast<size_t>(kShapes[i])),
           Filled(static_cast<size_t>(kShapes[i]), SumOfRanks(r) * static_cast<float>(i + 1)),
           "grouped allreduce");
  }
}

// No NCCL reduces 16-bit integers: such a tensor goes through the host, beside the others.
void AllreduceOfShorts(Rank& r) {
  const int64_t shape[] = {33};
  auto* const data = r.Upload(Filled<int16_t>(33, static_cast<int16_t>(r.rank() + 1)));
  coordd_work_t* work = nullptr;
  coordd_tensor_t tensor = r.Tensor("shorts", COORDD_INT16, data, data, shape);
  RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), "submit");
  r.Finish(work);
  coordd_work_release(work);
  Expect(r.Download<int16_t>(data, 33), Filled<int16_t>(33, static_cast<int16_t>(SumOfRanks(r))),
         "allreduce of int16");
}

// Not every NCCL reduces float8 on every GPU; every one gathers it. What goes through the host and
// the sizes of what is gathered share a lane there: all ranks have to keep one order.
void Float8(Rank& r) {
  const int64_t sums[] = {33}, rows[] = {r.rank() + 1, 3};
  const uint8_t own = Float32ToFloat8E4m3fn(static_cast<float>(r.rank() + 1));
  std::vector<uint8_t*> places;
  std::vector<coordd_work_t*> works;
  for (int i = 0; i < 6; ++i) {
    const std::string name = "float8 " + std::to_string(i);
    const bool gather = i % 2 == 1;
    places.push_back(
        r.Upload(Filled<uint8_t>(gather ? static_cast<size_t>(3 * rows[0]) : 33, own)));
    coordd_tensor_t tensor =
        gather ? r.Tensor(name.c_str(), COORDD_FLOAT8_E4M3FN, places.back(), nullptr, rows, 2)
               : r.Tensor(name.c_str(), COORDD_FLOAT8_E4M3FN, places.back(), places.back(), sums);
    coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
    if (!gather) options.postscale_factor = 2;
    works.push_back(nullptr);
    RequireOk(
        gather ? coordd_allgather_async(r.worker(), &tensor, nullptr, &works.back())
               : coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, &options, &works.back()),
        "submit");
  }
  std::vector<uint8_t> gathered;
  for (int32_t rank = 0; rank < r.size(); ++rank)
    gathered.insert(gathered.end(), static_cast<size_t>(rank + 1) * 3,
                    Float32ToFloat8E4m3fn(static_cast<float>(rank + 1)));
  const uint8_t sum = Float32ToFloat8E4m3fn(2 * SumOfRanks(r));
  for (size_t i = 0; i < works.size(); ++i) {
    r.Finish(works[i]);
    coordd_result_t result = COORDD_RESULT_INIT;
    if (i % 2 == 1) {
      RequireOk(coordd_work_result(works[i], &result), "result");
      Expect(r.Download<uint8_t>(result.output, gathered.size()), gathered, "allgather of float8");
    } else {
      Expect(r.Download<uint8_t>(places[i], 33), Filled<uint8_t>(33, sum), "allreduce of float8");
    }
    coordd_work_release(works[i]);
  }
}

void Broadcast(Rank& r) {
  const int64_t shape[] = {77};
  const int32_t root = r.size() - 1;
  auto* const data = r.Upload(Filled<double>(77, r.rank()));
  coordd_work_t* work = nullptr;
  coordd_tensor_t tensor = r.Tensor("broadcast", COORDD_FLOAT64, data, data, shape);
  RequireOk(coordd_broadcast_async(r.worker(), &tensor, root, nullptr, &work), "submit");
  r.Finish(work);
  coordd_work_release(work);
  Expect(r.Download<double>(data, 77), Filled<double>(77, root), "broadcast");
}

// Two at a time, of rows that differ by rank; the library makes the results.
void Allgather(Rank& r) {
  const int64_t shape[] = {r.rank() + 1, 3};
  const size_t own = static_cast<size_t>(shape[0] * 3);
  std::vector<coordd_tensor_t> tensors;
  for (const char* name : {"rows", "more rows"}) {
    int32_t* const data = r.Upload(Filled<int32_t>(own, r.rank()));
    tensors.push_back(r.Tensor(name, COORDD_INT32, data, nullptr, shape, 2));
  }
  coordd_work_t* works[2] = {};
  RequireOk(
      coordd_grouped_allgather_async(r.worker(), "gathered", tensors.data(), 2, nullptr, works),
      "submit");
  std::vector<int32_t> expected;
  for (int32_t rank = 0; rank < r.size(); ++rank)
    expected.insert(expected.end(), static_cast<size_t>(rank + 1) * 3, rank);
  for (coordd_work_t* work : works) {
    r.Finish(work);
    coordd_result_t result = COORDD_RESULT_INIT;
    RequireOk(coordd_work_result(work, &result), "result");
    Require(result.shape[0] == static_cast<int64_t>(expected.size() / 3), "rows of an allgather");
    Expect(r.Download<int32_t>(result.output, expected.size()), expected, "allgather");
    coordd_work_release(work);
  }
}

void ReduceScatter(Rank& r) {
  const int64_t shape[] = {2 * r.size() + 1};  // the lowest rank gets the extra row
  std::vector<float> values(static_cast<size_t>(shape[0]));
  std::iota(values.begin(), values.end(), static_cast<float>(r.rank()));
  float* const data = r.Upload(values);
  coordd_work_t* work = nullptr;
  coordd_tensor_t tensor = r.Tensor("scatter", COORDD_FLOAT32, data, nullptr, shape);
  RequireOk(coordd_reducescatter_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), "submit");
  r.Finish(work);
  coordd_result_t result = COORDD_RESULT_INIT;
  RequireOk(coordd_work_result(work, &result), "result");
  std::vector<float> expected;
  const int32_t first = r.rank() == 0 ? 0 : 2 * r.rank() + 1;
  for (int32_t row = first; row < first + (r.rank() == 0 ? 3 : 2); ++row)
    expected.push_back(static_cast<float>(row * r.size() + r.size() * (r.size() - 1) / 2));
  Expect(r.Download<float>(result.output, expected.size()), expected, "reducescatter");
  coordd_work_release(work);
}

void Alltoall(Rank& r) {
  // Rank a gives rank b a + b rows; nothing from rank 0 to itself.
  std::vector<int64_t> splits;
  std::vector<int32_t> values;
  std::vector<int32_t> expected;
  for (int32_t peer = 0; peer < r.size(); ++peer) {
    splits.push_back(r.rank() + peer);
    values.insert(values.end(), static_cast<size_t>(r.rank() + peer), 100 * r.rank() + peer);
    expected.insert(expected.end(), static_cast<size_t>(r.rank() + peer), 100 * peer + r.rank());
  }
  const int64_t shape[] = {static_cast<int64_t>(values.size())};
  int32_t* const data = r.Upload(values);
  coordd_work_t* work = nullptr;
  coordd_tensor_t tensor = r.Tensor("exchange", COORDD_INT32, data, nullptr, shape);
  RequireOk(
      coordd_alltoall_async(r.worker(), &tensor, splits.data(), splits.size(), nullptr, &work),
      "submit");
  r.Finish(work);
  coordd_result_t result = COORDD_RESULT_INIT;
  RequireOk(coordd_work_result(work, &result), "result");
  Expect(r.Download<int32_t>(result.output, expected.size()), expected, "alltoall");
  coordd_work_release(work);
}

void ReduceAndGather(Rank& r) {
  const int64_t shape[] = {5};
  float* const data = r.Upload(Filled(5, static_cast<float>(r.rank() + 1)));
  float* const output = r.Upload(Filled(5, -1.0f));
  coordd_work_t* works[2] = {};
  coordd_tensor_t reduced = r.Tensor("reduce", COORDD_FLOAT32, data, output, shape);
  coordd_tensor_t gathered = r.Tensor("gather", COORDD_FLOAT32, data, nullptr, shape);
  RequireOk(coordd_reduce_async(r.worker(), &reduced, 0, COORDD_MAX, nullptr, &works[0]), "submit");
  RequireOk(coordd_gather_async(r.worker(), &gathered, 0, nullptr, &works[1]), "submit");
  for (coordd_work_t* work : works) r.Finish(work);
  if (r.rank() == 0) {
    Expect(r.Download<float>(output, 5), Filled(5, static_cast<float>(r.size())), "reduce");
    coordd_result_t result = COORDD_RESULT_INIT;
    RequireOk(coordd_work_result(works[1], &result), "result");
    std::vector<float> expected;
    for (int32_t rank = 0; rank < r.size(); ++rank)
      expected.insert(expected.end(), 5, static_cast<float>(rank + 1));
    Expect(r.Download<float>(result.output, expected.size()), expected, "gather");
  }
  for (coordd_work_t* work : works) coordd_work_release(work);
}

// To the next rank of each pair.
void SendAndReceive(Rank& r) {
  const bool sends = r.rank() % 2 == 0;
  const int32_t peer = sends ? r.rank() + 1 : r.rank() - 1;
  if (peer >= r.size()) return;
  const int64_t shape[] = {9};
  float* const data = r.Upload(Filled(9, static_cast<float>(r.rank())));
  const std::string name = "pair" + std::to_string(r.rank() / 2);
  coordd_tensor_t tensor = r.Tensor(name.c_str(), COORDD_FLOAT32, data, data, shape);
  coordd_work_t* work = nullptr;
  RequireOk(sends ? coordd_send_async(r.worker(), &tensor, peer, nullptr, &work)
                  : coordd_receive_async(r.worker(), &tensor, peer, nullptr, &work),
            "submit");
  r.Finish(work);
  coordd_work_release(work);
  Expect(r.Download<float>(data, 9), Filled(9, static_cast<float>(sends ? r.rank() : peer)),
         "send and receive");
}

// Names repeat before the device is through: nothing waits for it but the end.
void StepsWithoutWaiting(Rank& r) {
  const int64_t shape[] = {300};
  float* const data = r.Upload(Filled(300, 1.0f));
  float expected = 1;
  for (int step = 0; step < 5; ++step) {
    coordd_tensor_t tensor = r.Tensor("step", COORDD_FLOAT32, data, data, shape);
    coordd_work_t* work = nullptr;
    RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), "submit");
    RequireOk(coordd_work_wait_on_stream(work, r.stream(), -1), "wait on the stream");
    coordd_work_release(work);
    expected *= static_cast<float>(r.size());
  }
  Expect(r.Download<float>(data, 300), Filled(300, expected), "steps");
}

// The library uses the memory of its results again, once a stream that has read them is through:
// some places, whatever the number of steps.
void ResultsInFewPlaces(Rank& r) {
  constexpr int kSteps = 20;
  const int64_t shape[] = {100};
  float* const data = r.Upload(Filled(100, static_cast<float>(r.rank())));
  std::set<const void*> places;
  for (int step = 0; step < kSteps; ++step) {
    coordd_tensor_t tensor = r.Tensor("gathered anew", COORDD_FLOAT32, data, nullptr, shape);
    coordd_work_t* work = nullptr;
    RequireOk(coordd_allgather_async(r.worker(), &tensor, nullptr, &work), "submit");
    RequireOk(coordd_work_wait_on_stream(work, r.stream(), -1), "wait on the stream");
    coordd_result_t result = COORDD_RESULT_INIT;
    RequireOk(coordd_work_result(work, &result), "result");
    places.insert(result.output);
    const size_t last = static_cast<size_t>(100 * r.size()) - 1;
    Expect(r.Download<float>(static_cast<const float*>(result.output) + last, 1),
           Filled(1, static_cast<float>(r.size() - 1)), "allgather once more");
    coordd_work_release(work);
  }
  Require(places.size() <= kSteps / 2, "results in " + std::to_string(places.size()) + " places");
}

// Ranks that have no more data take part with the operator's identity.
void Join(Rank& r) {
  const int64_t shape[] = {40};
  if (r.rank() > 0) {
    float* const data = r.Upload(Filled(40, 1.0f));
    coordd_tensor_t tensor = r.Tensor("last", COORDD_FLOAT32, data, data, shape);
    coordd_work_t* work = nullptr;
    RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), "submit");
    r.Finish(work);
    coordd_work_release(work);
    Expect(r.Download<float>(data, 40), Filled(40, static_cast<float>(r.size() - 1)), "join");
  }
  coordd_work_t* work = nullptr;
  RequireOk(coordd_join_async(r.worker(), nullptr, &work), "join");
  RequireOk(coordd_work_wait(work, -1), "join");
  coordd_work_release(work);
}

void Collectives(Rank& r, int steps) {
  int32_t sets[2] = {};
  std::vector<int32_t> ranks(static_cast<size_t>(r.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const bool with_sets = r.size() > 2;
  if (with_sets) {
    const size_t fewer = ranks.size() - 1;
    RequireOk(coordd_process_set_add(r.worker(), ranks.data(), fewer, 0, &sets[0]), "add a set");
    RequireOk(coordd_process_set_add(r.worker(), ranks.data() + 1, fewer, 0, &sets[1]),
              "add a set");
  }
  for (int step = 0; step < steps; ++step) {
    Allreduce(r);
    Averages(r);
    RegisteredMemory(r);
    GroupedAllreduce(r);
    AllreduceOfShorts(r);
    Float8(r);
    Broadcast(r);
    Allgather(r);
    ReduceScatter(r);
    Alltoall(r);
    ReduceAndGather(r);
    SendAndReceive(r);
    if (with_sets) ProcessSets(r, sets);
    StepsWithoutWaiting(r);
    ResultsInFewPlaces(r);
    r.ForgetMemory();
  }
  for (const TypeOnDevice& type : EveryTypeOnDevice()) CollectivesOfType(r, type);
  if (r.size() > 1) Join(r);
  std::printf("ok %d steps\n", steps);
}

coordd_status_t Step(Rank& r, float* data) {
  const int64_t shape[] = {1000};
  coordd_tensor_t tensor = r.Tensor("gradient", COORDD_FLOAT32, data, data, shape);
  coordd_work_t* work = nullptr;
  coordd_status_t status =
      coordd_allreduce_async(r.worker(), &tensor, COORDD_AVERAGE, nullptr, &work);
  if (status == COORDD_OK) status = coordd_work_wait_on_stream(work, r.stream(), -1);
  const std::string text = status == COORDD_OK ? "" : coordd_last_error();
  coordd_work_release(work);
  if (status != COORDD_OK) {
    // What was held at the gate has let go: the program knows.
    r.Synchronize();
    std::printf("ended %s %s\n", coordd_status_name(status), text.c_str());
    std::fflush(stdout);
  }
  return status;
}

double SecondsSince(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

void Train(Rank& r, int dies_at) {
  float* const data = r.Upload(Filled(1000, 1.0f));
  ResultLog log(r.runtime(), r.device(), r.stream());
  coordd_barrier(r.worker(), "started", nullptr);  // who dies earlier fails the others' start
  coordd_status_t status = COORDD_OK;
  std::chrono::steady_clock::time_point begun;  // of the last step: the others were there still
  for (int step = 0; status == COORDD_OK; ++step) {
    if (step == dies_at) raise(SIGKILL);
    begun = std::chrono::steady_clock::now();
    log.Check(1.0f);
    status = Step(r, data);
    if (status == COORDD_OK) log.Note(data);
  }
  if (status != COORDD_GENERATION_CHANGED) return;
  // From the last commit, which is the beginning.
  const double told = SecondsSince(begun);
  r.EnterNext();
  log.Forget();
  float* const again = r.Upload(Filled(1000, 1.0f));
  for (int step = 0; step < kStepsAfterwards; ++step) {
    Require(Step(r, again) == COORDD_OK, "a step of the next generation");
    log.Note(again);
    if (step > 0) continue;
    r.Synchronize();
    std::printf(
        "the first result of %d ranks came %.0f ms after the step began that was told of it after "
        "%.0f ms\n",
        r.size(), SecondsSince(begun) * 1e3, told * 1e3);
  }
  r.Synchronize();
  log.Check(1.0f);
  // Whoever leaves ends the generation, and with it what is still on the others' devices.
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
}

void HostAndDevice(Rank& r) {
  const int64_t shape[] = {10};
  std::vector<float> host(10, 1.0f);
  float* const data = r.Upload(host);
  coordd_tensor_t tensor = r.Tensor("mixed", COORDD_FLOAT32, data, data, shape);
  if (r.rank() == 0) {
    tensor.input = tensor.output = host.data();
    tensor.device_kind = COORDD_HOST;
    tensor.stream = nullptr;
  }
  const coordd_status_t status =
      coordd_allreduce(r.worker(), &tensor, COORDD_SUM, nullptr, nullptr);
  std::printf("ended %s %s\n", coordd_status_name(status), coordd_last_error());
}

// The stand-in's own words; nothing with a real NCCL.
void SayWhatNcclSaw() {
  void* const fake = dlopen(
      getenv("COORDD_NCCL_LIBRARY") != nullptr ? getenv("COORDD_NCCL_LIBRARY") : "libnccl.so.2",
      RTLD_NOW | RTLD_NOLOAD);
  if (fake == nullptr) {
    std::printf("nccl not loaded\n");
    return;
  }
  const auto rule = reinterpret_cast<const char* (*)()>(dlsym(fake, "fake_nccl_broken_rule"));
  const auto calls = reinterpret_cast<long (*)()>(dlsym(fake, "fake_nccl_calls"));
  if (rule == nullptr || calls == nullptr) return;
  SayHowItAveraged(fake);
  if (const auto split = reinterpret_cast<long (*)()>(dlsym(fake, "fake_nccl_split_communicators")))
    std::printf("nccl split %ld\n", split());
  const auto windows = reinterpret_cast<long (*)()>(dlsym(fake, "fake_nccl_windows"));
  std::printf("nccl calls %ld broken rule [%s] windows %ld\n", calls(), rule(),
              windows != nullptr ? windows() : 0);
}

int Run(int argc, char** argv) {
  if (argc < 3) Fail("usage: gpu_ranks DEVICE SCENARIO [ARGUMENT]");
  {
    Rank rank(std::atoi(argv[1]));
    std::printf("rank %d of %d pid %d\n", rank.rank(), rank.size(), getpid());
    std::fflush(stdout);
    const std::string scenario = argv[2];
    const int number = argc > 3 ? std::atoi(argv[3]) : -1;
    if (scenario == "collectives") Collectives(rank, number);
    if (scenario == "rhythms") Rhythms(rank, number);
    if (scenario == "train") Train(rank, number);
    if (scenario == "drain") Drain(rank);
    if (scenario == "graphs") Graphs(rank, number);
    if (scenario == "train-graphs") TrainWithGraphs(rank, number);
    if (scenario == "stuck") StuckBehindTheDevice(rank, number > 0, rank.rank() == 1);
    if (scenario == "different-graphs") CaptureWhatDiffers(rank);
    if (scenario == "set") InASet(rank);
    if (scenario == "windows") Windows(rank, number);
    if (scenario == "stand") StandBehindOwnWork(rank, number, argc > 4 ? argv[4] : "");
    if (scenario == "beside") BesideNccl(rank, number, argv[4][0] == '1', {argv + 5, argv + argc});
    if (scenario == "wait") WaitFor(rank, argc > 3 ? argv[3] : "a");
    if (scenario == "host-and-device") HostAndDevice(rank);
    SayWhatNcclSaw();
    std::fflush(stdout);
  }
  std::printf("left\n");
  return 0;
}

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) { return coordd::Run(argc, argv); }
