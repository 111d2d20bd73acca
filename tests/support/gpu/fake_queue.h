// What the fake device has little of: the queue between the host and all of its streams, where
// there is one, and room for collectives' kernels.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace coordd {

// What is launched on streams that share it goes to them in the order of the launches. What cannot
// go yet holds up everything behind it, whatever its stream. Thread-safe; never ends.
class FakeQueue {
 public:
  FakeQueue() : thread_([this] { Run(); }) {}

  // `may_go` returns when it may; then `go` is called.
  void Add(std::function<void()> may_go, std::function<void()> go) {
    std::lock_guard lock(mu_);
    entries_.push_back({std::move(may_go), std::move(go)});
    changed_.notify_all();
  }

 private:
  struct Entry {
    std::function<void()> may_go, go;
  };
  void Run();

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  std::thread thread_;  // the last: it starts when everything else is there
};

// That of a device whose streams share one, as CUDA_DEVICE_MAX_CONNECTIONS=1 wants it; nullptr:
// they do not.
FakeQueue* QueueOf(int device);

}  // namespace coordd
