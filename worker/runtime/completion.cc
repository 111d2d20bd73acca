#include "worker/runtime/completion.h"

#include <utility>

#include "common/base/thread.h"
#include "worker/interfaces/peer_status.h"
#include "worker/runtime/worker_metrics.h"

namespace coordd {
namespace {

bool EndsAtOnce(const BatchJob& batch) {
  if (batch.for_this_thread) return !batch.tensors().front().work->has_callbacks();
  int64_t bytes = 0;
  for (const TensorJob& tensor : batch.tensors()) {
    bytes += tensor.result.output_bytes;
    if (bytes > kEndedAtOnceBytesMax || tensor.work->has_callbacks()) return false;
  }
  return true;
}

}  // namespace

Completion::Completion(std::string backend_name, PendingNames& names, WorkerMetrics& metrics,
                       TraceRecorder& trace, Clock& clock, CompletionHooks hooks)
    : backend_name_(std::move(backend_name)),
      clock_(clock),
      hooks_(std::move(hooks)),
      names_(names),
      metrics_(metrics),
      trace_(trace),
      inbox_(kInboxCapacity, clock) {}

Completion::~Completion() { Stop(); }

void Completion::Start() {
  thread_ = StartThread("completion", [this] { Run(); });
}

void Completion::Finish(std::unique_ptr<BatchJob> batch) {
  if (EndsAtOnce(*batch)) return End(std::move(batch));
  inbox_.PushUnbounded(Item(std::move(batch)));
}

void Completion::Fail(std::shared_ptr<Work> work, absl::Status status) {
  inbox_.PushUnbounded(Item(Failure{std::move(work), std::move(status)}));
}

void Completion::FinishHeld(std::unique_ptr<BatchJob> batch) {
  batch->Unpack();
  batch->counts_after_all = true;
  inbox_.PushUnbounded(Item(std::move(batch)));
}

void Completion::Stop() {
  inbox_.Close();
  if (thread_.joinable()) thread_.join();
}

void Completion::Run() {
  while (!inbox_.Finished()) {
    std::vector<Item> items = inbox_.TakeAll(absl::InfiniteFuture());
    metrics_.SetCompletionQueue(static_cast<int64_t>(items.size()));
    for (Item& item : items) {
      if (auto* batch = std::get_if<std::unique_ptr<BatchJob>>(&item)) {
        if ((*batch)->counts_after_all) {
          CompleteAll(**batch);
        } else {
          End(std::move(*batch));
        }
      } else {
        auto& failure = std::get<Failure>(item);
        // That of one that was enqueued on a device is somebody else's by now.
        if (!failure.work->enqueued()) names_.Erase(failure.work->spec());
        Complete(*failure.work, backend_name_, std::move(failure.status), {});
      }
      item = Failure{};  // lets go of the buffers before the next batch is unpacked
    }
    metrics_.SetCompletionQueue(0);
  }
}

void Completion::End(std::unique_ptr<BatchJob> owned) {
  BatchJob& batch = *owned;
  const bool ok = batch.status.ok();
  if (ok) {
    metrics_.RecordExecution(batch.times.ended - batch.times.launched);
    batch.Unpack();
    // One tensor by itself is where it belongs already.
    if (trace_.on()) {
      const bool unpacked = batch.scratch.has_value();
      trace_.Add(batch, unpacked ? clock_.Now() : batch.times.ended);
    }
  }
  BatchDone done{batch.lane(),      batch.sequence(), batch.status, SuspectOf(batch.status),
                 batch.times.ended, batch.has_result};
  if (!ok && hooks_.interrupted) return hooks_.interrupted(std::move(owned), std::move(done));
  if (batch.scratch.has_value()) hooks_.return_scratch(batch.data_lane(), *batch.scratch);
  hooks_.batch_done(std::move(done));
  if (ok) CompleteAll(batch);
}

void Completion::CompleteAll(BatchJob& batch) {
  names_.Erase(batch.tensors());
  const absl::string_view backend = batch.on_device() ? "nccl" : absl::string_view(backend_name_);
  for (TensorJob& tensor : batch.tensors()) {
    if (tensor.absent) continue;
    Complete(*tensor.work, backend, std::move(tensor.status), std::move(tensor.result));
  }
}

void Completion::Complete(Work& work, absl::string_view backend, absl::Status status,
                          WorkResult result) {
  const TensorSpec& spec = work.spec();
  const int64_t bytes = HasPayload(spec.kind) ? SizeBytes(spec) : 0;
  metrics_.RecordCollective(spec.kind, backend, status.code(), bytes);
  if (!status.ok()) result = WorkResult{};
  work.Complete(std::move(status), std::move(result));
}

}  // namespace coordd
