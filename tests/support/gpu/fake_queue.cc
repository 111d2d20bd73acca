#include "tests/support/gpu/fake_queue.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_cuda_settings.h"

using namespace coordd;

namespace {

// Kernels of collectives that are at work, by device.
struct Collectives {
  std::mutex mu;
  std::condition_variable changed;
  std::map<int, long> at_work;
};
Collectives& TheCollectives() {
  static Collectives* collectives = new Collectives;
  return *collectives;
}

}  // namespace

namespace coordd {

void FakeQueue::Run() {
  while (true) {
    Entry entry;
    {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [this] { return !entries_.empty(); });
      entry = std::move(entries_.front());
      entries_.pop_front();
    }
    entry.may_go();
    entry.go();
  }
}

FakeQueue* QueueOf(int device) {
  static const char* const connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections == nullptr || std::strcmp(connections, "1") != 0) return nullptr;
  static std::mutex mu;
  static auto* queues = new std::map<int, FakeQueue*>;
  std::lock_guard lock(mu);
  FakeQueue*& queue = (*queues)[device];
  if (queue == nullptr) queue = new FakeQueue;
  return queue;
}

}  // namespace coordd

extern "C" {

void fake_cuda_begin_collective(int device) {
  Collectives& collectives = TheCollectives();
  std::unique_lock lock(collectives.mu);
  const long most = FakeCudaSettings().Get("collectives");
  long& at_work = collectives.at_work[device];
  collectives.changed.wait(lock, [&] { return most == 0 || at_work < most; });
  ++at_work;
}

void fake_cuda_end_collective(int device) {
  Collectives& collectives = TheCollectives();
  std::lock_guard lock(collectives.mu);
  --collectives.at_work[device];
  collectives.changed.notify_all();
}

long fake_cuda_collectives_at_work(int device) {
  Collectives& collectives = TheCollectives();
  std::lock_guard lock(collectives.mu);
  return collectives.at_work[device];
}

}  // extern "C"
