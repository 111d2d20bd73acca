// A rank of a job whose tensors are in GPU memory, for gpu_test.py (over the stand-ins of CUDA's
// driver and NCCL) and for tests/gpu/run (over real ones). Knows the library by its C interface
// alone; the driver is opened as the library opens it.
//
//   collectives STEPS    every collective, several steps, results checked
//   train [STEP]         allreduces in place, enqueued one behind the other without a wait for the
//                        device, until one fails; at STEP this rank kills itself
//   wait NAME            one allreduce of that name; says how it ended
//   host-and-device      the lowest rank submits memory of the host, the others of a device
//
// The first argument is the device (-1: the local rank's). Prints "ok ..." or the error; the
// stand-in of NCCL, where it is loaded, says whether a rule of NCCL was broken and how many calls
// there were.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "coordd/coordd.h"
#include "worker/device/device_handles.h"
#include "worker/idle_wait.h"

namespace coordd {
namespace {

[[noreturn]] void Fail(const std::string& what) {
  std::printf("FAILED %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}
void Require(bool holds, const std::string& what) {
  if (!holds) Fail(what);
}
void RequireOk(coordd_status_t status, const std::string& what) {
  if (status != COORDD_OK)
    Fail(what + ": " + coordd_status_name(status) + " " + coordd_last_error());
}

class Rank {
 public:
  explicit Rank(int32_t device) {
    RequireOk(coordd_worker_start(nullptr, &worker_), "start");
    rank_ = coordd_rank(worker_);
    size_ = coordd_size(worker_);
    device_ = device >= 0 ? device : coordd_local_rank(worker_) % runtime_->device_count();
    stream_ = std::make_unique<DeviceStream>(DeviceStream::Create(*runtime_, device_).value());
  }
  ~Rank() {
    stream_.reset();
    coordd_worker_destroy(worker_);
  }

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  coordd_worker_t* worker() const { return worker_; }
  void* stream() const { return stream_->get(); }

  // Memory of the device, written on this rank's stream: the host does not wait for that.
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    memory_.push_back(DeviceMemory::Allocate(*runtime_, device_, bytes).value());
    std::byte* const at = memory_.back().data();
    if (!CopyAsync(*runtime_, device_, at, values.data(), bytes, stream_->get()).ok())
      Fail("copy to the device");
    return reinterpret_cast<T*>(at);
  }
  // What the stream sees there, behind everything that it waits for.
  template <typename T>
  std::vector<T> Download(const void* from, size_t count) {
    const auto bytes = static_cast<int64_t>(count * sizeof(T));
    const DeviceMemory pinned = DeviceMemory::AllocatePinned(*runtime_, device_, bytes).value();
    if (!CopyAsync(*runtime_, device_, pinned.data(), from, bytes, stream_->get()).ok())
      Fail("copy from the device");
    Synchronize();
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), pinned.data(), count * sizeof(T));
    return values;
  }
  void Synchronize() {
    DeviceEvent event = DeviceEvent::Create(*runtime_, device_).value();
    Require(event.Record(stream_->get()).ok(), "record");
    IdleWait idle(1, 1);
    while (!event.Happened().value()) idle.Wait();
  }

  coordd_tensor_t Tensor(const char* name, coordd_dtype_t dtype, const void* input, void* output,
                         const int64_t* shape, int32_t ndim = 1) const {
    coordd_tensor_t tensor = COORDD_TENSOR_INIT;
    tensor.name = name;
    tensor.input = input;
    tensor.output = output;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.ndim = ndim;
    tensor.device_kind = COORDD_CUDA;
    tensor.device_index = device_;
    tensor.stream = stream_->get();
    return tensor;
  }
  // Every other work is waited for by the stream, the others by this thread.
  void Finish(coordd_work_t* work) {
    const bool by_stream = ++finished_ % 2 == 0;
    RequireOk(by_stream ? coordd_work_wait_on_stream(work, stream_->get(), -1)
                        : coordd_work_wait(work, -1),
              coordd_work_name(work));
  }
  void ForgetMemory() {
    Synchronize();
    memory_.clear();
  }

 private:
  coordd_worker_t* worker_ = nullptr;
  int32_t rank_ = 0, size_ = 0, device_ = 0;
  std::shared_ptr<DeviceRuntime> runtime_ = DeviceRuntime::Open().value();
  std::unique_ptr<DeviceStream> stream_;
  std::vector<DeviceMemory> memory_;
  int finished_ = 0;
};

template <typename T>
std::vector<T> Filled(size_t count, T value) {
  return std::vector<T>(count, value);
}

template <typename T>
void Expect(const std::vector<T>& found, const std::vector<T>& expected, const char* what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i < found.size() && found[i] == expected[i]) continue;
    Fail(std::string(what) + ": element " + std::to_string(i) + " is " +
         (i < found.size() ? std::to_string(found[i]) : "missing") + ", expected " +
         std::to_string(expected[i]));
  }
  Require(found.size() == expected.size(), std::string(what) + ": too many elements");
}

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

// Two sets that overlap, used in opposite orders by the ranks that are in both: one order on every
// device is coordd's to make.
void ProcessSets(Rank& r, const int32_t (&sets)[2]) {
  const int64_t shape[] = {50};
  coordd_work_t* works[2] = {};
  float* data[2] = {};
  std::vector<int> mine;
  if (r.rank() + 1 < r.size()) mine.push_back(0);
  if (r.rank() > 0) mine.push_back(1);
  if (r.rank() % 2 == 1) std::reverse(mine.begin(), mine.end());
  for (int which : mine) {
    data[which] = r.Upload(Filled(50, static_cast<float>(r.rank())));
    coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
    options.process_set = sets[which];
    coordd_tensor_t tensor = r.Tensor("subset", COORDD_FLOAT32, data[which], data[which], shape);
    RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, &options, &works[which]),
              "submit to a set");
  }
  const int32_t all = r.size() * (r.size() - 1) / 2;
  for (int which : mine) {
    r.Finish(works[which]);
    coordd_work_release(works[which]);
    const int32_t expected = which == 0 ? all - (r.size() - 1) : all;
    Expect(r.Download<float>(data[which], 50), Filled(50, static_cast<float>(expected)), "subset");
  }
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
    GroupedAllreduce(r);
    AllreduceOfShorts(r);
    Broadcast(r);
    Allgather(r);
    ReduceScatter(r);
    Alltoall(r);
    ReduceAndGather(r);
    SendAndReceive(r);
    if (with_sets) ProcessSets(r, sets);
    StepsWithoutWaiting(r);
    r.ForgetMemory();
  }
  if (r.size() > 1) Join(r);
  std::printf("ok %d steps\n", steps);
}

void Train(Rank& r, int dies_at) {
  const int64_t shape[] = {1000};
  float* const data = r.Upload(Filled(1000, 1.0f));
  coordd_barrier(r.worker(), "started", nullptr);  // who dies earlier fails the others' start
  for (int step = 0;; ++step) {
    if (step == dies_at) raise(SIGKILL);
    coordd_tensor_t tensor = r.Tensor("gradient", COORDD_FLOAT32, data, data, shape);
    coordd_work_t* work = nullptr;
    coordd_status_t status =
        coordd_allreduce_async(r.worker(), &tensor, COORDD_AVERAGE, nullptr, &work);
    if (status == COORDD_OK) status = coordd_work_wait_on_stream(work, r.stream(), -1);
    if (status != COORDD_OK) {
      const std::string text = coordd_last_error();
      coordd_work_release(work);
      // What was held at the gate has let go: the program knows.
      r.Synchronize();
      std::printf("ended %s %s\n", coordd_status_name(status), text.c_str());
      return;
    }
    coordd_work_release(work);
  }
}

void WaitFor(Rank& r, const char* name) {
  const int64_t shape[] = {10};
  float* const data = r.Upload(Filled(10, 1.0f));
  coordd_tensor_t tensor = r.Tensor(name, COORDD_FLOAT32, data, data, shape);
  const coordd_status_t status =
      coordd_allreduce(r.worker(), &tensor, COORDD_SUM, nullptr, nullptr);
  std::printf("ended %s %s\n", coordd_status_name(status),
              status == COORDD_OK ? std::to_string(r.Download<float>(data, 10)[9]).c_str()
                                  : coordd_last_error());
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
  std::printf("nccl calls %ld broken rule [%s]\n", calls(), rule());
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
    if (scenario == "train") Train(rank, number);
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
