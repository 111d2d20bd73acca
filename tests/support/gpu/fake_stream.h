// A stream of the fake driver: a thread that runs what is pushed, in order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace coordd {

// A point in a stream, which others wait for.
struct FakePoint {
  std::atomic<bool> happened = false;
  std::chrono::steady_clock::time_point at;  // once it has

  void Happen() {
    at = std::chrono::steady_clock::now();
    happened = true;
    happened.notify_all();
  }
};

class FakeStream {
 public:
  FakeStream() : thread_([this] { Run(); }) {}
  // Runs what is there to its end.
  ~FakeStream() {
    {
      std::lock_guard lock(mu_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  void Push(std::function<void()> task) {
    std::lock_guard lock(mu_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock lock(mu_);
        changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;  // the last: it starts when everything else is there
};

}  // namespace coordd
