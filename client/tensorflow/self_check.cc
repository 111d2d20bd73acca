#include "client/tensorflow/self_check.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "client/tensorflow/done_callback.h"

namespace coordd::tensorflow {
namespace {

struct Kept {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<DoneCallback> done;  // guarded by mutex
};

Kept& TheKept() {
  static Kept kept;
  return kept;
}

// libstdc++'s std::function: two words for what it calls, then the functions that manage and call.
bool LooksLikeAFunction(const TfDone* done) {
  struct Layout {
    void* callee[2];
    void* functions[2];
  };
  static_assert(sizeof(Layout) == sizeof(std::function<void()>));
  Layout layout;
  std::memcpy(&layout, done, sizeof(layout));
  for (void* function : layout.functions) {
    Dl_info found;
    if (function == nullptr || dladdr(function, &found) == 0) return false;
  }
  return true;
}

}  // namespace

void StartSelfCheck(TfContext* context, TfDone* done) {
  const OwnedStatus status;
  TfTensor* output = Tf().AllocateOutput(context, 0, kTfInt32, nullptr, 0, 4, status.get());
  if (status.ok()) {
    const int answer = 1;
    std::memcpy(Tf().TensorData(output), &answer, sizeof(answer));
    Tf().DeleteTensor(output);
  } else {
    Tf().OpKernelContext_Failure(context, status.get());
  }
  if (!LooksLikeAFunction(done)) {
    Tf().SetStatus(
        status.get(), kTfUnimplemented,
        "the callback of an asynchronous kernel is no std::function<void()> of libstdc++");
    Tf().OpKernelContext_Failure(context, status.get());
    Tf().RunAsyncOpKernelDoneCallback(done);
    return;
  }
  Kept& kept = TheKept();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  kept.done.emplace(done);
  kept.changed.notify_all();
}

bool FinishSelfCheck(double timeout_seconds) {
  Kept& kept = TheKept();
  std::unique_lock<std::mutex> lock(kept.mutex);
  const auto is_there = [&kept] { return kept.done.has_value(); };
  if (!kept.changed.wait_for(lock, std::chrono::duration<double>(timeout_seconds), is_there)) {
    return false;
  }
  DoneCallback done = std::move(*kept.done);
  kept.done.reset();
  lock.unlock();
  done.Run();
  return true;
}

}  // namespace coordd::tensorflow
