#include "worker/program/allreduce_loop.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

struct Buffer {
  std::string name;
  std::vector<float> input, output;
};

absl::Status RunIteration(Worker& worker, std::vector<Buffer>& buffers) {
  std::vector<std::shared_ptr<Work>> works;
  for (Buffer& buffer : buffers) {
    Submission submission;
    submission.spec.name = buffer.name;
    submission.spec.op = ReduceOp::kSum;
    submission.spec.shape = {static_cast<int64_t>(buffer.input.size())};
    submission.input = buffer.input.data();
    submission.output = buffer.output.data();
    absl::StatusOr<std::shared_ptr<Work>> work = worker.Submit(std::move(submission));
    if (!work.ok()) {
      // The buffers belong to the runtime until what was submitted has ended.
      for (const auto& one : works) one->Wait(absl::InfiniteFuture()).IgnoreError();
      return work.status();
    }
    works.push_back(*std::move(work));
  }
  absl::Status first;
  for (const auto& work : works) {
    const absl::Status status = work->Wait(absl::InfiniteFuture());  // the Work has a deadline
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace

AllreduceLoopResult RunAllreduceLoop(Worker& worker, const AllreduceLoopOptions& options,
                                     Clock& clock, const std::atomic<bool>& stop) {
  const Placement place = worker.placement();
  const float mine = static_cast<float>(place.rank + 1);
  const float sum = static_cast<float>(place.size) * static_cast<float>(place.size + 1) / 2;
  std::vector<Buffer> buffers;
  for (int64_t t = 0; t < options.tensors; ++t) {
    const auto elements = static_cast<size_t>(options.elements);
    buffers.push_back({absl::StrCat("loop/", t), std::vector<float>(elements, mine),
                       std::vector<float>(elements)});
  }
  AllreduceLoopResult result;
  const absl::Time start = clock.Now();
  while (!stop.load() && (options.iterations == 0 || result.iterations < options.iterations)) {
    result.status = RunIteration(worker, buffers);
    if (!result.status.ok()) break;
    ++result.iterations;
    for (Buffer& buffer : buffers) {
      const bool is_right = std::all_of(buffer.output.begin(), buffer.output.end(),
                                        [sum](float value) { return value == sum; });
      if (!is_right) ++result.wrong;
    }
    // The end of the generation ends the pause too.
    if (options.interval > absl::ZeroDuration())
      worker.AwaitEnd(clock.Now() + options.interval).IgnoreError();
  }
  result.seconds = absl::ToDoubleSeconds(clock.Now() - start);
  return result;
}

}  // namespace coordd
