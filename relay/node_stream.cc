#include "relay/node_stream.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"
#include "common/protocol/message_sequence.h"
#include "relay/worker_stream.h"

namespace coordd {
namespace {

constexpr char kMethod[] = "/coordd.v1.Coordinator/NodeSession";

// Nothing that a relay's own stream ends with is a word about a worker: it comes again, and hears.
absl::Status ForWorkers(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return status;
  return absl::UnavailableError(
      absl::StrCat("the node's session with coordd has ended: ", status.message()));
}

}  // namespace

NodeStream::NodeStream(const RelayOptions& options, v1::NodeHello hello, Clock& clock,
                       std::function<void()> wake, std::shared_ptr<void> alive)
    : alive_(std::move(alive)),
      clock_(clock),
      wake_(std::move(wake)),
      state_(options, std::move(hello)) {}

void NodeStream::Begin(std::shared_ptr<NodeStream> self, std::shared_ptr<grpc::Channel> channel) {
  channel_ = std::move(channel);
  stub_ = std::make_unique<grpc::GenericStub>(channel_);
  {
    MutexLock lock(&mu_);
    self_ = std::move(self);
  }
  stub_->PrepareBidiStreamingCall(&context_, kMethod, /*options=*/{}, this);
  COORDD_TSAN_RELEASE(&incoming_);
  StartRead(&incoming_);
  StartCall();
}

bool NodeStream::Add(const std::shared_ptr<WorkerStream>& worker, absl::Status* why) {
  MutexLock lock(&mu_);
  if (ended_.has_value()) {
    *why = *ended_;
    return false;
  }
  workers_.emplace(worker->id(), worker);
  return true;
}

bool NodeStream::Said(StreamId worker, std::string message) {
  std::vector<std::shared_ptr<WorkerStream>> resumed;
  bool goes_on = true;
  {
    MutexLock lock(&mu_);
    const auto it = workers_.find(worker);
    if (it == workers_.end()) return true;  // coordd has ended it; its stream ends
    const absl::Time now = clock_.Now();
    state_.Said(worker, std::move(message), now);
    FlushLocked(now, resumed);
    goes_on = !state_.full();
    if (!goes_on) withheld_.push_back(it->second);
  }
  for (const auto& stream : resumed) stream->ReadNext();
  wake_();
  return goes_on;
}

void NodeStream::Ended(StreamId worker, absl::string_view detail) {
  std::shared_ptr<WorkerStream> gone;  // destroyed after the lock
  std::vector<std::shared_ptr<WorkerStream>> resumed;
  {
    MutexLock lock(&mu_);
    const auto it = workers_.find(worker);
    if (it == workers_.end()) return;
    gone = std::move(it->second);
    workers_.erase(it);
    const absl::Time now = clock_.Now();
    state_.Ended(worker, detail, now);
    FlushLocked(now, resumed);
  }
  for (const auto& stream : resumed) stream->ReadNext();
  wake_();
}

std::vector<std::string> NodeStream::MetricsAddresses() const {
  MutexLock lock(&mu_);
  return state_.MetricsAddresses();
}

absl::Time NodeStream::BatchDue() const {
  MutexLock lock(&mu_);
  // The end of a write, or of the stream, is the next that happens.
  return writing_ || ended_.has_value() ? absl::InfiniteFuture() : state_.BatchDue();
}

void NodeStream::Flush() {
  std::vector<std::shared_ptr<WorkerStream>> resumed;
  {
    MutexLock lock(&mu_);
    FlushLocked(clock_.Now(), resumed);
  }
  for (const auto& stream : resumed) stream->ReadNext();
}

// While a batch is being written the next one grows.
void NodeStream::FlushLocked(absl::Time now, std::vector<std::shared_ptr<WorkerStream>>& resumed) {
  if (writing_ || ended_.has_value() || state_.BatchDue() > now) return;
  const grpc::Slice slice(state_.TakeBatch().SerializeAsString());
  outgoing_ = grpc::ByteBuffer(&slice, 1);
  writing_ = true;
  if (!state_.full()) resumed.swap(withheld_);
  COORDD_TSAN_RELEASE(&outgoing_);
  StartWrite(&outgoing_);
}

void NodeStream::OnWriteDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&outgoing_);
  std::vector<std::shared_ptr<WorkerStream>> resumed;
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) FlushLocked(clock_.Now(), resumed);
  }
  for (const auto& stream : resumed) stream->ReadNext();
  wake_();
}

void NodeStream::OnReadDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&incoming_);
  if (!ok) {
    MutexLock lock(&mu_);
    // No write may be started any more: gRPC may be done with the stream at any moment.
    if (!ended_.has_value()) ended_ = absl::UnavailableError("the node's session has ended");
    return;
  }
  {
    v1::NodeReplies replies;
    grpc::ProtoBufferReader reader(&incoming_);
    if (reader.status().ok() && replies.ParseFromZeroCopyStream(&reader)) {
      Deliver(replies);
    } else {
      context_.TryCancel();
    }
  }
  incoming_.Clear();
  COORDD_TSAN_RELEASE(&incoming_);
  StartRead(&incoming_);
}

void NodeStream::Deliver(const v1::NodeReplies& replies) {
  struct Delivery {
    std::shared_ptr<WorkerStream> to;
    RelayState::ToWorker what;
  };
  std::vector<Delivery> deliveries;
  {
    MutexLock lock(&mu_);
    std::vector<RelayState::ToWorker> out;
    const absl::Status status = state_.Heard(replies, clock_.Now(), out);
    if (!status.ok()) context_.TryCancel();
    for (RelayState::ToWorker& what : out) {
      const auto it = workers_.find(what.stream);
      if (it == workers_.end()) continue;
      deliveries.push_back({it->second, std::move(what)});
      if (deliveries.back().what.message == nullptr) workers_.erase(it);
    }
  }
  const std::string* last = nullptr;
  grpc::Slice body;
  for (Delivery& delivery : deliveries) {
    if (delivery.what.message == nullptr) {
      delivery.to->Close(delivery.what.status);
      continue;
    }
    if (delivery.what.message != last) {
      last = delivery.what.message;
      body = grpc::Slice(*last);  // one copy of the bytes for all receivers
    }
    const grpc::Slice parts[] = {body, grpc::Slice(SequenceField(delivery.what.sequence))};
    delivery.to->Send(grpc::ByteBuffer(parts, 2));
  }
  wake_();  // coordd is to hear of the ends
}

void NodeStream::OnDone(const grpc::Status& status) {
  std::shared_ptr<NodeStream> self;
  std::map<StreamId, std::shared_ptr<WorkerStream>> workers;
  const absl::Status why = ForWorkers(FromCoordd(status));
  {
    MutexLock lock(&mu_);
    ended_ = why;
    done_ = true;
    workers.swap(workers_);
    withheld_.clear();
    self = std::move(self_);
  }
  for (const auto& [id, worker] : workers) worker->Close(why);
  wake_();
}

void NodeStream::Cancel() {
  MutexLock lock(&mu_);
  if (!done_) context_.TryCancel();
}

bool NodeStream::ended() const {
  MutexLock lock(&mu_);
  return ended_.has_value();
}

}  // namespace coordd
