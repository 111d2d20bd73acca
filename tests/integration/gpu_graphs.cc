#include "tests/integration/gpu_graphs.h"

#include <dlfcn.h>
#include <signal.h>

#include <cmath>
#include <functional>

namespace coordd {
namespace {

constexpr int kLaunchesAfterwards = 20;
constexpr int kStepsMax = 100'000;
constexpr int kCaptureGlobal = 0;  // as programs have it when they say nothing

// What of the driver only programs call.
struct Graph {
  RankOnDevice& r;
  CudaGraph graph = nullptr;
  void* ready = nullptr;

  template <typename Function>
  static Function* Of(const char* name) {
    void* const driver = dlopen(kCudaDriverLibrary, RTLD_NOW);
    Require(driver != nullptr, "the driver");
    return reinterpret_cast<Function*>(dlsym(driver, name));
  }
  // Captures what `enqueue` puts on the rank's stream.
  Graph(RankOnDevice& rank, const std::function<void()>& enqueue) : r(rank) {
    const CudaFunctions& cuda = r.runtime().cuda();
    const DeviceScope scope = DeviceScope::Enter(r.runtime(), r.device()).value();
    const auto stream = static_cast<CudaStream>(r.stream());
    Require(cuda.StreamBeginCapture(stream, kCaptureGlobal) == kCudaSuccess, "begin a capture");
    enqueue();
    Require(cuda.StreamEndCapture(stream, &graph) == kCudaSuccess, "end a capture");
    Require(Of<CudaResult(void**, CudaGraph, unsigned long long)>("cuGraphInstantiateWithFlags")(
                &ready, graph, 0) == kCudaSuccess,
            "instantiate a graph");
  }
  ~Graph() {
    const auto scope = DeviceScope::Enter(r.runtime(), r.device());
    Of<CudaResult(void*)>("cuGraphExecDestroy")(ready);
    r.runtime().cuda().GraphDestroy(graph);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void Launch() {
    static auto* const launch = Of<CudaResult(void*, CudaStream)>("cuGraphLaunch");
    const DeviceScope scope = DeviceScope::Enter(r.runtime(), r.device()).value();
    Require(launch(ready, static_cast<CudaStream>(r.stream())) == kCudaSuccess, "launch a graph");
  }
};

float SumOverRanks(const RankOnDevice& r) {
  return static_cast<float>(r.size() * (r.size() + 1) / 2);
}

void Prepare(RankOnDevice& r) {
  RequireOk(coordd_graphs_prepare(r.worker(), 0, r.device(), 0), "prepare graphs");
}

void Finish(RankOnDevice& r, coordd_status_t submitted, coordd_work_t* const& work) {
  RequireOk(submitted, "capture");
  Require(coordd_work_poll(work) == 1, "a captured work is complete at once");
  RequireOk(coordd_work_wait_on_stream(work, r.stream(), -1), "wait in a capture");
  coordd_work_release(work);
}

void Copy(RankOnDevice& r, void* to, const void* from, size_t count) {
  const auto bytes = static_cast<int64_t>(count * sizeof(float));
  Require(
      CopyAsync(r.runtime(), r.device(), to, from, bytes, static_cast<CudaStream>(r.stream())).ok(),
      "copy on the device");
}

// The buffers of what is captured.
struct Buffers {
  static constexpr size_t kCount = 1000;
  explicit Buffers(RankOnDevice& r)
      : size(static_cast<size_t>(r.size())),
        input(r.Upload(std::vector<float>(kCount * size))),
        in_place(r.Upload(std::vector<float>(kCount))),
        mean(r.Upload(std::vector<float>(kCount))),
        first(r.Upload(std::vector<float>(kCount))),
        second(r.Upload(std::vector<double>(7))),
        rows(r.Upload(std::vector<float>(kCount * size))),
        part(r.Upload(std::vector<float>(kCount))),
        sent(r.Upload(std::vector<float>(kCount))) {}
  const size_t size;
  float *input, *in_place, *mean, *first;
  double* second;
  float *rows, *part, *sent;
};

void CaptureAll(RankOnDevice& r, const Buffers& b) {
  const int64_t shape[] = {Buffers::kCount},
                all[] = {static_cast<int64_t>(Buffers::kCount * b.size)}, few[] = {7};
  coordd_work_t* work = nullptr;
  Copy(r, b.in_place, b.input, Buffers::kCount);
  coordd_tensor_t tensor = r.Tensor("a", COORDD_FLOAT32, b.in_place, b.in_place, shape);
  Finish(r, coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), work);
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  options.prescale_factor = 2;
  tensor = r.Tensor("a", COORDD_FLOAT32, b.input, b.mean, shape);  // the name does not matter
  Finish(r, coordd_allreduce_async(r.worker(), &tensor, COORDD_AVERAGE, &options, &work), work);
  const coordd_tensor_t group[] = {r.Tensor("g0", COORDD_FLOAT32, b.input, b.first, shape),
                                   r.Tensor("g1", COORDD_FLOAT64, b.second, b.second, few)};
  coordd_work_t* works[2] = {};
  const coordd_status_t grouped =
      coordd_grouped_allreduce_async(r.worker(), "group", group, 2, COORDD_MAX, nullptr, works);
  for (coordd_work_t* each : works) Finish(r, grouped, each);
  tensor = r.Tensor("r", COORDD_FLOAT32, b.input, b.rows, shape);
  Finish(r, coordd_allgather_async(r.worker(), &tensor, nullptr, &work), work);
  tensor = r.Tensor("p", COORDD_FLOAT32, b.input, b.part, all);
  Finish(r, coordd_reducescatter_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), work);
  tensor = r.Tensor("b", COORDD_FLOAT32, b.input, b.sent, shape);
  Finish(r, coordd_broadcast_async(r.worker(), &tensor, r.size() - 1, nullptr, &work), work);
}

void ExpectAll(RankOnDevice& r, const Buffers& b, float base) {
  const auto of = [](float value) { return Filled(Buffers::kCount, value); };
  const float sum = base * SumOverRanks(r);
  const auto size = static_cast<float>(r.size());
  Expect(r.Download<float>(b.in_place, Buffers::kCount), of(sum), "sum in a graph");
  Expect(r.Download<float>(b.mean, Buffers::kCount), of(2 * sum / size), "average in a graph");
  Expect(r.Download<float>(b.first, Buffers::kCount), of(base * size), "group in a graph");
  Expect(r.Download<double>(b.second, 7), Filled(7, 3.0), "second of a group in a graph");
  Expect(r.Download<float>(b.part, Buffers::kCount), of(sum), "reducescatter in a graph");
  Expect(r.Download<float>(b.sent, Buffers::kCount), of(base * size), "broadcast in a graph");
  std::vector<float> rows;
  for (int rank = 0; rank < r.size(); ++rank)
    rows.insert(rows.end(), Buffers::kCount, base * static_cast<float>(rank + 1));
  Expect(r.Download<float>(b.rows, rows.size()), rows, "allgather in a graph");
}

// A text of the last error, of what is refused in a capture.
void ExpectRefused(coordd_status_t status, coordd_status_t expected, const char* text) {
  Require(status == expected && std::strstr(coordd_last_error(), text) != nullptr,
          std::string("expected a refusal with \"") + text + "\", found " +
              coordd_status_name(status) + " " + coordd_last_error());
}

void Refusals(RankOnDevice& r, bool prepared) {
  const int64_t shape[] = {33};
  auto* const shorts = r.Upload(Filled<int16_t>(33, 1));
  auto* const floats = r.Upload(Filled(33, 1.0f));
  const Graph nothing(r, [&] {
    coordd_work_t* work = nullptr;
    coordd_tensor_t tensor = r.Tensor("refused", COORDD_FLOAT32, floats, floats, shape);
    if (!prepared) {
      ExpectRefused(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work),
                    COORDD_FAILED_PRECONDITION, "expected coordd_graphs_prepare");
      return;
    }
    tensor.output = nullptr;
    ExpectRefused(coordd_allgather_async(r.worker(), &tensor, nullptr, &work),
                  COORDD_INVALID_ARGUMENT, "has no output");
    tensor.output = floats;
    ExpectRefused(coordd_reduce_async(r.worker(), &tensor, 0, COORDD_SUM, nullptr, &work),
                  COORDD_UNIMPLEMENTED, "reduce cannot be");
    tensor = r.Tensor("shorts", COORDD_INT16, shorts, shorts, shape);
    ExpectRefused(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work),
                  COORDD_UNIMPLEMENTED, "is not reduced by NCCL");
  });
}

void AllreduceBetween(RankOnDevice& r, float* data) {
  const int64_t shape[] = {Buffers::kCount};
  coordd_tensor_t tensor = r.Tensor("between", COORDD_FLOAT32, data, data, shape);
  coordd_work_t* work = nullptr;
  RequireOk(coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), "between");
  RequireOk(coordd_work_wait_on_stream(work, r.stream(), -1), "between");
  coordd_work_release(work);
}

}  // namespace

void Graphs(RankOnDevice& r, int launches) {
  Refusals(r, /*prepared=*/false);
  ExpectRefused(coordd_graphs_check(r.worker(), 0, 0), COORDD_FAILED_PRECONDITION, "prepare");
  Prepare(r);
  Prepare(r);  // does nothing
  Refusals(r, /*prepared=*/true);
  const Buffers b(r);
  Graph graph(r, [&] { CaptureAll(r, b); });
  RequireOk(coordd_graphs_check(r.worker(), 0, 0), "check graphs");
  for (int step = 0; step < launches; ++step) {
    const auto base = static_cast<float>(step % 7 + 1);
    const std::vector<float> own(Buffers::kCount * b.size, base * static_cast<float>(r.rank() + 1));
    const std::vector<double> few(7, 3.0 - r.rank());
    Require(CopyAsync(r.runtime(), r.device(), b.input, own.data(),
                      static_cast<int64_t>(own.size() * sizeof(float)),
                      static_cast<CudaStream>(r.stream()))
                .ok(),
            "new inputs");
    Require(CopyAsync(r.runtime(), r.device(), b.second, few.data(),
                      static_cast<int64_t>(few.size() * sizeof(double)),
                      static_cast<CudaStream>(r.stream()))
                .ok(),
            "new inputs");
    graph.Launch();
    if (step % 10 == 0) {
      ExpectAll(r, b, base);
      AllreduceBetween(r, b.in_place);
      Expect(r.Download<float>(b.in_place, Buffers::kCount),
             Filled(Buffers::kCount, base * SumOverRanks(r) * static_cast<float>(r.size())),
             "an allreduce between launches");
    } else {
      ExpectAll(r, b, base);
    }
  }
  r.Synchronize();
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
  std::printf("ok %d launches\n", launches);
}

void TrainWithGraphs(RankOnDevice& r, int dies_at) {
  const int64_t shape[] = {1000};
  float* const input = r.Upload(Filled(1000, static_cast<float>(r.rank() + 1)));
  float* const data = r.Upload(Filled(1000, 0.0f));
  float* const other = r.Upload(Filled(1000, 0.0f));
  auto captured = [&] {
    Copy(r, data, input, 1000);
    coordd_work_t* work = nullptr;
    coordd_tensor_t tensor = r.Tensor("a", COORDD_FLOAT32, data, data, shape);
    Finish(r, coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), work);
  };
  ResultLog log(r.runtime(), r.device(), r.stream());
  Prepare(r);
  Graph graph(r, captured);
  RequireOk(coordd_barrier(r.worker(), "started", nullptr), "start");
  coordd_status_t status = COORDD_OK;
  for (int step = 0; status == COORDD_OK && step < kStepsMax; ++step) {
    if (step == dies_at) raise(SIGKILL);
    log.Check(SumOverRanks(r));
    graph.Launch();
    log.Note(data);
    if (step % 8 != 7) continue;
    coordd_work_t* work = nullptr;
    coordd_tensor_t tensor = r.Tensor("other", COORDD_FLOAT32, other, other, shape);
    status = coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work);
    if (status == COORDD_OK) status = coordd_work_wait(work, -1);
    if (status != COORDD_OK)
      std::printf("ended %s %s\n", coordd_status_name(status), coordd_last_error());
    coordd_work_release(work);
  }
  if (status != COORDD_GENERATION_CHANGED) return;
  r.EnterNext();
  log.Forget();
  r.Synchronize();  // what was launched before is through: nothing hangs
  graph.Launch();   // nor does this
  Require(std::isnan(r.Download<float>(data, 1000)[999]),
          "a graph of a lost generation left a number");
  Require(std::isnan(r.Download<float>(data, 1000)[0]),
          "a graph of a lost generation left a number");
  Prepare(r);
  Graph again(r, captured);
  RequireOk(coordd_graphs_check(r.worker(), 0, 0), "check graphs");
  const std::vector<float> own(1000, static_cast<float>(r.rank() + 1));
  float* const renewed = r.Upload(own);
  Copy(r, input, renewed, 1000);
  for (int launch = 0; launch < kLaunchesAfterwards; ++launch) {
    again.Launch();
    Expect(r.Download<float>(data, 1000), Filled(1000, SumOverRanks(r)), "a graph captured again");
  }
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
  std::printf("ok captured again by %d ranks\n", r.size());
}

void StuckBehindTheDevice(RankOnDevice& r, bool in_a_graph, bool dies) {
  const int64_t shape[] = {1000};
  float* const data = r.Upload(Filled(1000, 0.0f));
  coordd_tensor_t tensor = r.Tensor("a", COORDD_FLOAT32, data, data, shape);
  coordd_work_t* work = nullptr;
  Prepare(r);
  Graph graph(r, [&] {
    Finish(r, coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), work);
  });
  AllreduceBetween(r, data);  // so that NCCL is there
  r.Synchronize();
  RequireOk(coordd_barrier(r.worker(), "started", nullptr), "start");
  // What is not captured is on both devices when the rank is lost; its own stands there behind a
  // graph that the other never launches.
  if (in_a_graph != dies) graph.Launch();
  if (!in_a_graph) AllreduceBetween(r, data);
  char enqueued[1];
  size_t bytes = 0;
  if (!dies) {
    RequireOk(coordd_store_set(r.worker(), "enqueued", "", 0, 60), "say that it is enqueued");
  } else {
    RequireOk(coordd_store_get(r.worker(), "enqueued", enqueued, sizeof(enqueued), &bytes, 60),
              "hear that it is enqueued");
    raise(SIGKILL);
  }
  DeviceEvent event = DeviceEvent::Create(r.runtime(), r.device()).value();
  Require(event.Record(static_cast<CudaStream>(r.stream())).ok(), "record");
  IdleWait idle(1, 1);
  while (true) {
    const absl::StatusOr<bool> happened = event.Happened();
    if (!happened.ok()) {
      std::printf("ok stuck no longer: %s\n", std::string(happened.status().message()).c_str());
      std::fflush(stdout);
      std::_Exit(3);  // its context is gone
    }
    Require(!*happened, "a result of a lost rank was let through");
    idle.Wait();
  }
}

void CaptureWhatDiffers(RankOnDevice& r) {
  const int64_t shape[] = {1000}, fewer[] = {999};
  float* const data = r.Upload(Filled(1000, 0.0f));
  Prepare(r);
  const Graph graph(r, [&] {
    for (int call = 0; call < 3; ++call) {
      coordd_work_t* work = nullptr;
      coordd_tensor_t tensor =
          r.Tensor("a", COORDD_FLOAT32, data, data, r.rank() == 1 && call == 2 ? fewer : shape);
      Finish(r, coordd_allreduce_async(r.worker(), &tensor, COORDD_SUM, nullptr, &work), work);
    }
  });
  const coordd_status_t status = coordd_graphs_check(r.worker(), 0, 0);
  std::printf("ended %s %s\n", coordd_status_name(status), coordd_last_error());
  RequireOk(coordd_barrier(r.worker(), "through", nullptr), "the end");
}

}  // namespace coordd
