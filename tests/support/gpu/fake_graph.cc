#include "tests/support/gpu/fake_graph.h"

#include <atomic>
#include <utility>

// NOLINTBEGIN: the driver's names
using namespace coordd;

namespace {

constexpr CudaResult kIllegalState = 401;
constexpr CudaResult kCaptureUnmatched = 903;

std::atomic<int> captures = 0;

using Body = std::shared_ptr<FakeGraphBody>;

}  // namespace

namespace coordd {

int FakeCaptures() { return captures; }

}  // namespace coordd

extern "C" {

int fake_cuda_is_capturing(CudaStream stream) { return StreamOf(stream).capture() != nullptr; }

void fake_cuda_capture(CudaStream stream, void (*run)(void*), void (*end)(void*), void* argument) {
  const Body graph = StreamOf(stream).capture();
  const std::shared_ptr<void> object(argument, end);
  graph->Add([run, argument] { run(argument); });
  std::lock_guard lock(graph->mu);
  graph->retained.push_back(object);
}

CudaResult cuStreamBeginCapture_v2(CudaStream stream, int) {
  if (stream == nullptr || StreamOf(stream).capture() != nullptr) return kIllegalState;
  StreamOf(stream).SetCapture(std::make_shared<FakeGraphBody>());
  ++captures;
  return kCudaSuccess;
}
CudaResult cuStreamEndCapture(CudaStream stream, CudaGraph* graph) {
  Body body = StreamOf(stream).capture();
  if (body == nullptr) return kCaptureUnmatched;
  CaptureStreams(body, nullptr);
  --captures;
  *graph = reinterpret_cast<CudaGraph>(new Body(std::move(body)));
  return kCudaSuccess;
}
CudaResult cuGraphInstantiateWithFlags(void** ready, CudaGraph graph, unsigned long long) {
  *ready = new Body(*reinterpret_cast<Body*>(graph));
  return kCudaSuccess;
}
CudaResult cuGraphLaunch(void* ready, CudaStream stream) {
  StreamOf(stream).PushNow([body = *static_cast<Body*>(ready)] {
    for (const auto& task : body->tasks) task();
  });
  return kCudaSuccess;
}
CudaResult cuGraphExecDestroy(void* ready) {
  delete static_cast<Body*>(ready);
  return kCudaSuccess;
}
CudaResult cuGraphDestroy(CudaGraph graph) {
  delete reinterpret_cast<Body*>(graph);
  return kCudaSuccess;
}

}  // extern "C"
// NOLINTEND
