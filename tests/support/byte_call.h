// gRPC calls whose messages are bytes: what no generated stub would send.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace coordd {

struct ByteReply {
  grpc::Status status;
  std::vector<std::string> messages;
};

// Opens a stream, sends `messages`, closes its side when `half_close`, reads to the end.
inline ByteReply CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& method, const std::vector<std::string>& messages,
                               bool half_close) {
  grpc::CompletionQueue queue;
  auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::GenericStub stub(channel);
  auto call = stub.PrepareCall(&context, method, &queue);
  ByteReply reply;
  call->StartCall(nullptr);
  bool alive = wait();
  for (const std::string& message : messages) {
    if (!alive) break;
    const grpc::Slice slice(message);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    alive = wait();
  }
  if (alive && half_close) {
    call->WritesDone(nullptr);
    wait();
  }
  grpc::ByteBuffer buffer;
  for (call->Read(&buffer, nullptr); wait(); call->Read(&buffer, nullptr)) {
    grpc::Slice slice;
    if (buffer.DumpToSingleSlice(&slice).ok())
      reply.messages.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  call->Finish(&reply.status, nullptr);
  wait();
  queue.Shutdown();
  while (wait()) {
  }
  return reply;
}

}  // namespace coordd
