// Small builders of what workers send.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/version.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

inline std::vector<Rank> Ranks(std::vector<int32_t> numbers) {
  std::vector<Rank> ranks;
  for (int32_t number : numbers) ranks.push_back(Rank{number});
  return ranks;
}

inline TensorSpec Gradient(std::string name, std::vector<int64_t> shape) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.op = ReduceOp::kSum;
  spec.shape = std::move(shape);
  return spec;
}

inline TensorSpec InGroup(TensorSpec spec, std::string group, int32_t group_size) {
  spec.group = std::move(group);
  spec.group_size = group_size;
  return spec;
}

inline v1::Join JoinOf(const std::string& worker_id, const std::string& node = "node0") {
  v1::Join join;
  join.set_job("train");
  join.set_token("secret");
  join.set_worker_id(worker_id);
  join.mutable_host()->set_hostname(node);
  join.mutable_host()->set_node_id(node);
  join.set_pid(4711);
  join.set_launcher_rank(-1);
  join.set_launcher_local_rank(-1);
  join.set_keeps_process_sets(true);
  join.mutable_versions()->set_protocol(kProtocolVersion);
  join.mutable_versions()->set_coordd(kVersion);
  return join;
}

inline v1::ProcessSets ProcessSetsOf(const std::map<int32_t, std::vector<int32_t>>& sets,
                                     int32_t last, int64_t position = 0) {
  v1::ProcessSets said;
  said.set_last_process_set(last);
  said.set_position(position);
  for (const auto& [number, ranks] : sets) {
    v1::ProcessSet& set = *said.add_sets();
    set.set_process_set(number);
    set.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  }
  return said;
}

inline v1::WorkerMessage MessageOf(Epoch epoch, Generation generation) {
  v1::WorkerMessage message;
  message.set_epoch(ToInt(epoch));
  message.set_generation(ToInt(generation));
  return message;
}

}  // namespace coordd
