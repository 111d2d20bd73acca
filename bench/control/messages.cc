#include "bench/control/messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/protocol/slot_dictionary.h"

namespace coordd::bench {
namespace {

constexpr int64_t kElements = 1024;  // of each gradient

v1::WorkerMessage MessageOf(Epoch epoch, Generation generation) {
  v1::WorkerMessage message;
  message.set_epoch(ToInt(epoch));
  message.set_generation(ToInt(generation));
  return message;
}

}  // namespace

v1::WorkerMessage JoinMessage(const std::string& job, const JobShape& shape, int32_t rank) {
  const int32_t node = rank / shape.ranks_per_node;
  v1::WorkerMessage message;
  v1::Join& join = *message.mutable_join();
  join.set_job(job);
  join.set_token("0123456789abcdef0123456789abcdef");
  join.set_worker_id(absl::StrCat("simulated-", rank));
  join.mutable_host()->set_hostname(absl::StrCat("node", node));
  join.mutable_host()->set_node_id(absl::StrCat("boot-of-node", node));
  join.set_pid(1000 + rank);
  join.set_launcher_rank(rank);
  join.set_launcher_local_rank(rank % shape.ranks_per_node);
  join.set_knows_slots(true);
  join.mutable_versions()->set_protocol(kProtocolVersion);
  join.mutable_versions()->set_coordd(kVersion);
  join.mutable_limits()->set_min_workers(shape.ranks());
  join.mutable_limits()->set_max_workers(shape.ranks());
  return message;
}

v1::WorkerMessage ReadyMessage(Epoch epoch, Generation generation, int64_t series,
                               int32_t tensors) {
  v1::WorkerMessage message = MessageOf(epoch, generation);
  for (int32_t i = 0; i < tensors; ++i) {
    v1::TensorSpec& tensor = *message.mutable_tensors_ready()->add_tensors();
    tensor.set_name(absl::StrCat("model", series, ".layer", i, ".weight"));
    tensor.set_kind(v1::COLLECTIVE_KIND_ALLREDUCE);
    tensor.set_dtype(v1::DATA_TYPE_FLOAT32);
    tensor.set_op(v1::REDUCE_OP_AVERAGE);
    tensor.add_shape(kElements);
    tensor.set_memory(v1::MEMORY_KIND_HOST);
  }
  return message;
}

v1::WorkerMessage CachedMessage(Epoch epoch, Generation generation, absl::Span<const int64_t> slots,
                                int64_t known) {
  v1::WorkerMessage message = MessageOf(epoch, generation);
  v1::CachedTensors& cached = *message.mutable_tensors_ready()->add_cached();
  cached.set_known(known);
  SlotBits packed = PackSlots(slots);
  cached.set_first_slot(packed.first);
  cached.set_bits(std::move(packed.bits));
  return message;
}

v1::WorkerMessage GroupMessage(Epoch epoch, Generation generation, const std::string& name,
                               absl::Span<const int32_t> ranks) {
  v1::WorkerMessage message = MessageOf(epoch, generation);
  v1::ProcessSetRequest& request = *message.mutable_process_set_request();
  request.set_name(name);
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return message;
}

v1::NodeHello HelloMessage(const std::string& job, int32_t node) {
  v1::NodeHello hello;
  hello.set_job(job);
  hello.set_protocol(kProtocolVersion);
  hello.set_hostname(absl::StrCat("node", node));
  return hello;
}

v1::WorkerMessage HeartbeatMessage(Epoch epoch, Generation generation, int64_t sent_ns) {
  v1::WorkerMessage message = MessageOf(epoch, generation);
  message.mutable_heartbeat()->set_sent_ns(sent_ns);
  return message;
}

}  // namespace coordd::bench
