// A worker reduced to its stream, for tests of coordd: it says exactly what the test says.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/net/address.h"
#include "coordd/v1/session.grpc.pb.h"

namespace coordd {

inline std::shared_ptr<grpc::Channel> ChannelTo(
    const HostPort& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                                 grpc::InsecureChannelCredentials()) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  return grpc::CreateCustomChannel(address.ToString(), credentials, arguments);
}

// Against hangs only: no test waits for it, and what takes a second takes half a minute under a
// sanitizer on a busy machine.
inline std::chrono::system_clock::time_point TestDeadline() {
  return std::chrono::system_clock::now() + std::chrono::minutes(5);
}

inline v1::WorkerMessage JoinMessage(const std::string& job, const std::string& worker_id,
                                     int32_t workers) {
  v1::WorkerMessage message;
  v1::Join& join = *message.mutable_join();
  join.set_job(job);
  join.set_token("secret");
  join.set_worker_id(worker_id);
  join.mutable_host()->set_hostname("host1");
  join.mutable_host()->set_node_id("node1");
  join.set_pid(4711);
  join.set_launcher_rank(-1);
  join.set_launcher_local_rank(-1);
  join.mutable_versions()->set_protocol(kProtocolVersion);
  join.mutable_versions()->set_coordd(kVersion);
  join.mutable_limits()->set_min_workers(workers);
  join.mutable_limits()->set_max_workers(workers);
  return message;
}

// Touched by one thread.
class RawWorker {
 public:
  explicit RawWorker(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Coordinator::NewStub(channel)) {
    context_.set_deadline(TestDeadline());
    stream_ = stub_->Session(&context_);
  }
  ~RawWorker() {
    context_.TryCancel();
    if (!finished_) stream_->Finish();
  }

  // Of the last membership that was read.
  int64_t epoch = 0, generation = 0;
  int rank = -1;

  bool Send(v1::WorkerMessage message) {
    message.set_epoch(epoch);
    message.set_generation(generation);
    return stream_->Write(message);
  }
  bool Join(const std::string& job, const std::string& worker_id, int32_t workers) {
    return Send(JoinMessage(job, worker_id, workers));
  }
  bool Heartbeat() {
    v1::WorkerMessage message;
    message.mutable_heartbeat()->set_sent_ns(1);
    return Send(std::move(message));
  }
  bool Leave() {
    v1::WorkerMessage message;
    message.mutable_leave()->set_reason("the test is done");
    return Send(std::move(message));
  }
  bool Ready(const std::string& tensor, int64_t elements) {
    v1::WorkerMessage message;
    v1::TensorSpec& spec = *message.mutable_tensors_ready()->add_tensors();
    spec.set_name(tensor);
    spec.set_kind(v1::COLLECTIVE_KIND_ALLREDUCE);
    spec.set_dtype(v1::DATA_TYPE_FLOAT32);
    spec.set_op(v1::REDUCE_OP_SUM);
    spec.add_shape(elements);
    spec.set_memory(v1::MEMORY_KIND_HOST);
    return Send(std::move(message));
  }

  // The next message, or one without a body when the stream has ended.
  v1::CoordinatorMessage Read() {
    v1::CoordinatorMessage message;
    if (!stream_->Read(&message)) return {};
    EXPECT_EQ(message.sequence(), ++sequence_) << "a message was lost or came twice";
    if (message.has_membership()) {
      epoch = message.epoch();
      generation = message.generation();
      rank = message.membership().rank();
    }
    return message;
  }
  // Skips what it is not interested in (Waiting, LeaseAck).
  v1::CoordinatorMessage ReadUntil(v1::CoordinatorMessage::BodyCase wanted) {
    v1::CoordinatorMessage message = Read();
    while (message.body_case() != wanted &&
           message.body_case() != v1::CoordinatorMessage::BODY_NOT_SET) {
      message = Read();
    }
    return message;
  }

  // Reads to the end; how coordd ended the stream.
  grpc::Status Finish() {
    while (Read().body_case() != v1::CoordinatorMessage::BODY_NOT_SET) {
    }
    finished_ = true;
    return stream_->Finish();
  }
  void CloseSendingSide() { stream_->WritesDone(); }
  // As when the process dies.
  void Vanish() { context_.TryCancel(); }

 private:
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream_;
  int64_t sequence_ = 0;
  bool finished_ = false;
};

}  // namespace coordd
