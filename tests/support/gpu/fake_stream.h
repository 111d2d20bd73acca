// A stream of the fake driver: a thread that runs what is pushed, in order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/gpu/fake_queue.h"

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

// What a graph does, in the order in which it was captured, whatever the streams; it lives as long
// as a graph, one that is ready to be launched, or a launch refers to it.
struct FakeGraphBody {
  std::mutex mu;
  std::vector<std::function<void()>> tasks;
  std::vector<std::shared_ptr<void>> retained;  // user objects

  void Add(std::function<void()> task) {
    std::lock_guard lock(mu);
    tasks.push_back(std::move(task));
  }
};

class FakeStream {
 public:
  // `queue`: that it shares with others; nullptr: it has its own.
  explicit FakeStream(FakeQueue* queue = nullptr) : queue_(queue), thread_([this] { Run(); }) {}
  // Runs what is there to its end.
  ~FakeStream() {
    if (queue_ != nullptr) {
      FakePoint last;
      queue_->Add([] {}, [&last] { last.Happen(); });
      last.happened.wait(false);
    }
    {
      std::lock_guard lock(mu_);
      ending_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  // What is captured has to be fit to run more than once.
  void Push(std::function<void()> task) {
    if (const auto graph = capture()) return graph->Add(std::move(task));
    PushNow(std::move(task));
  }
  // Not into a graph.
  void PushNow(std::function<void()> task) {
    if (queue_ == nullptr) return Append(std::move(task));
    queue_->Add([this] { AwaitIdle(); }, [this, task] { Append(task); });
  }
  // An event: it holds up nobody in a queue.
  void PushRecord(const std::shared_ptr<FakePoint>& point) {
    auto happen = [point] { point->Happen(); };
    if (queue_ == nullptr) return Append(happen);
    queue_->Add([] {}, [this, happen] { Append(happen); });
  }
  void PushWait(const std::shared_ptr<FakePoint>& point) {
    auto wait = [point] { point->happened.wait(false); };
    if (const auto graph = capture()) return graph->Add(wait);
    if (queue_ == nullptr) return Append(wait);
    queue_->Add(wait, [] {});
  }

  // nullptr: what is pushed runs.
  std::shared_ptr<FakeGraphBody> capture() {
    std::lock_guard lock(mu_);
    return capture_;
  }
  void SetCapture(std::shared_ptr<FakeGraphBody> graph) {
    std::lock_guard lock(mu_);
    capture_ = std::move(graph);
  }

 private:
  void Append(std::function<void()> task) {
    std::lock_guard lock(mu_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  void AwaitIdle() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  }
  void Run() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock lock(mu_);
        changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        busy_ = true;
      }
      task();
      std::lock_guard lock(mu_);
      busy_ = false;
      changed_.notify_all();
    }
  }

  FakeQueue* const queue_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool busy_ = false;  // with the one before
  std::shared_ptr<FakeGraphBody> capture_;
  bool ending_ = false;
  std::thread thread_;  // the last: it starts when everything else is there
};

}  // namespace coordd
