#include "server/model/validate_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/base/one_line.h"
#include "common/protocol/protocol_bounds.h"
#include "common/protocol/slot_dictionary.h"
#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

TEST(ValidateMessage, AcceptsAPlainJoin) { EXPECT_THAT(ValidateJoin(JoinOf("a")), IsOk()); }

struct WrongMessage {
  std::function<void(v1::Join&)> set;
  std::string sentence;
};

TEST(ValidateMessage, AcceptsNamesInAnyScript) {
  v1::Join join = JoinOf("Knoten 1/größe 世界 नमस्ते שלום 😀");
  join.mutable_host()->set_hostname("κόσμος-7");
  join.mutable_host()->add_topology("Reihe 3, Schrank №5");
  EXPECT_THAT(ValidateJoin(join), IsOk());
}

TEST(ValidateMessage, NamesTheFieldOfAJoinThatIsBeyondItsBound) {
  const std::vector<WrongMessage> cases = {
      {[](v1::Join& j) { j.set_job(""); },
       "job: it has no name, expected one of 1 to 128 letters, digits, and . _ - (coordrun --job, "
       "COORDD_JOB_ID)"},
      {[](v1::Join& j) { j.set_job("a b"); }, "job: byte 32"},
      {[](v1::Join& j) { j.set_token(std::string(257, 'x')); }, "token: 257 bytes"},
      {[](v1::Join& j) { j.set_worker_id(""); }, "worker_id: 0 bytes"},
      {[](v1::Join& j) { j.set_worker_id("a\nb"); },
       "worker_id: \"a\\x0ab\", expected text of letters, marks, digits"},
      {[](v1::Join& j) { j.set_worker_id("a\u009b31m"); }, "worker_id: \"a\\u009b31m\""},
      {[](v1::Join& j) { j.set_worker_id("a\u202eb"); }, "worker_id: \"a\\u202eb\""},
      {[](v1::Join& j) { j.set_worker_id("a\u00adb"); }, "worker_id: \"a\\u00adb\""},
      {[](v1::Join& j) { j.mutable_host()->set_hostname("h\U000e0062"); }, "h\\ue0062"},
      {[](v1::Join& j) { j.set_worker_id("a\u00a0b"); }, "worker_id: \"a\\u00a0b\""},
      {[](v1::Join& j) { j.set_worker_id("\u2800"); }, "worker_id: \"\\u2800\""},
      {[](v1::Join& j) { j.set_worker_id("a "); }, "worker_id: \"a \", expected no space"},
      {[](v1::Join& j) { j.mutable_host()->set_node_id(" a"); }, "host.node_id: \" a\""},
      {[](v1::Join& j) { j.mutable_host()->set_node_id("\u3000"); }, "host.node_id"},
      {[](v1::Join& j) { j.mutable_host()->set_hostname("h\u2003"); }, "host.hostname"},
      {[](v1::Join& j) { j.mutable_host()->add_topology("\U00013430r"); }, "host.topology"},
      {[](v1::Join& j) { j.mutable_host()->set_node_id(""); }, "host.node_id: 0 bytes"},
      {[](v1::Join& j) { j.mutable_host()->set_hostname("\x1b[31m"); }, "host.hostname"},
      {[](v1::Join& j) {
         for (int i = 0; i < 9; ++i) j.mutable_host()->add_topology("r");
       },
       "host.topology: 9 entries, expected at most 8"},
      {[](v1::Join& j) { j.mutable_host()->add_topology(""); }, "host.topology: 0 bytes"},
      {[](v1::Join& j) { j.set_launcher_rank(-2); }, "launcher_rank: -2, expected at least -1"},
      {[](v1::Join& j) { j.add_devices()->set_kind(v1::MEMORY_KIND_HOST); }, "devices.kind: 1"},
      {[](v1::Join& j) { j.add_devices()->set_kind(v1::MEMORY_KIND_CUDA); }, "devices.uuid"},
      {[](v1::Join& j) { j.mutable_versions()->set_ucx(std::string(65, '1')); }, "versions.ucx"},
      {[](v1::Join& j) { j.set_metrics_address("a\tb"); }, "metrics_address"},
      {[](v1::Join& j) { j.set_metrics_address("127.0.0.1:1\"}\\"); }, "metrics_address"},
      {[](v1::Join& j) { j.set_metrics_address("http://10.0.0.1:1/x"); }, "metrics_address"},
      {[](v1::Join& j) { j.set_metrics_address("10.0.0.1:0"); }, "metrics_address"},
      {[](v1::Join& j) { j.set_metrics_address("10.0.0.1"); }, "metrics_address"},
      {[](v1::Join& j) { j.mutable_limits()->set_min_workers(-1); }, "limits.min_workers: -1"},
      {[](v1::Join& j) { j.mutable_limits()->mutable_settling_window()->set_seconds(-1); },
       "limits.settling_window: -1s"},
      {[](v1::Join& j) {
         j.mutable_limits()->mutable_settling_window()->set_seconds(int64_t{1} << 62);
       },
       "limits.settling_window"},
  };
  for (const WrongMessage& wrong : cases) {
    v1::Join join = JoinOf("a");
    wrong.set(join);
    EXPECT_THAT(ValidateJoin(join), StatusIs(Code::kInvalidArgument, HasSubstr(wrong.sentence)));
  }
}

TEST(ValidateMessage, WhatConsistsOfEmptyPartsTakesTooMuchMemory) {
  v1::WorkerMessage message;
  EXPECT_THAT(CheckSpace(message, 0), IsOk());
  for (int i = 0; i < 18'000; ++i) {  // as many as a message may have, with the shortest names
    v1::TensorSpec& tensor = *message.mutable_tensors_ready()->add_tensors();
    tensor.set_name("n");
    tensor.set_kind(v1::COLLECTIVE_KIND_ALLREDUCE);
    tensor.set_dtype(v1::DATA_TYPE_FLOAT32);
    tensor.set_op(v1::REDUCE_OP_SUM);
    tensor.add_shape(4);
  }
  EXPECT_THAT(CheckSpace(message, message.ByteSizeLong()), IsOk());
  for (int i = 0; i < 500'000; ++i) message.mutable_resume_report()->add_stored();
  EXPECT_THAT(
      CheckSpace(message, message.ByteSizeLong()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parts have nothing in them")));
}

TEST(ValidateMessage, ALineHasNothingThatATerminalShouldNotHave) {
  EXPECT_EQ(OneLine("a\nb\x1b[31m"), "a b [31m");
  EXPECT_EQ(OneLine("zw\u00f6lf \u4e00"), "zw\u00f6lf \u4e00");
  EXPECT_EQ(OneLine("x\u202ey\u009bz"), "x\\u202ey\\u009bz");
}

TEST(ValidateMessage, BoundsTensorsReady) {
  v1::TensorsReady ready;
  ready.add_tensors()->set_name("");
  EXPECT_THAT(ValidateTensorsReady(ready), StatusIs(Code::kInvalidArgument, HasSubstr("name")));
  ready.mutable_tensors(0)->set_name(std::string(513, 'x'));
  EXPECT_THAT(ValidateTensorsReady(ready), StatusIs(Code::kInvalidArgument, HasSubstr("513")));
  ready.mutable_tensors(0)->set_name("x");
  EXPECT_THAT(ValidateTensorsReady(ready), IsOk());
  while (ready.ByteSizeLong() <= static_cast<size_t>(kMaxTensorsReadyBytes)) {
    ready.add_tensors()->set_name(std::string(512, 'x'));
  }
  EXPECT_THAT(ValidateTensorsReady(ready), StatusIs(Code::kInvalidArgument, HasSubstr("262144")));
}

TEST(ValidateMessage, BoundsReportsBySlot) {
  v1::TensorsReady ready;
  v1::CachedTensors& cached = *ready.add_cached();
  EXPECT_THAT(ValidateTensorsReady(ready), IsOk()) << "nothing is known, nothing is reported";
  cached.set_bits("\x01");
  EXPECT_THAT(ValidateTensorsReady(ready),
              StatusIs(Code::kInvalidArgument, HasSubstr("cached.first_slot: 0")));
  cached.set_first_slot(3);
  cached.set_known(2);
  EXPECT_THAT(ValidateTensorsReady(ready), StatusIs(Code::kInvalidArgument, HasSubstr("at most")));
  cached.set_known(3);
  EXPECT_THAT(ValidateTensorsReady(ready), IsOk());
  cached.set_bits(std::string(size_t{2} * kMaxSlots / 8 + 1, '\x01'));
  EXPECT_THAT(ValidateTensorsReady(ready),
              StatusIs(Code::kInvalidArgument, HasSubstr("cached.bits: 16385 bytes")));
  cached.clear_bits();
  cached.set_known(-1);
  EXPECT_THAT(ValidateTensorsReady(ready),
              StatusIs(Code::kInvalidArgument, HasSubstr("cached.known: -1")));
}

TEST(ValidateMessage, BoundsEverythingElse) {
  v1::Heartbeat heartbeat;
  for (int i = 0; i < 257; ++i) heartbeat.add_lanes();
  EXPECT_THAT(ValidateHeartbeat(heartbeat), StatusIs(Code::kInvalidArgument, HasSubstr("lanes")));
  v1::Leave leave;
  leave.set_reason(std::string(1025, 'x'));
  EXPECT_THAT(ValidateLeave(leave), StatusIs(Code::kInvalidArgument, HasSubstr("reason")));
  v1::CollectiveFailed failed;
  failed.set_detail(std::string(1025, 'x'));
  EXPECT_THAT(ValidateCollectiveFailed(failed),
              StatusIs(Code::kInvalidArgument, HasSubstr("detail")));
  v1::TensorsWithdrawn withdrawn;
  withdrawn.add_names("");
  EXPECT_THAT(ValidateTensorsWithdrawn(withdrawn),
              StatusIs(Code::kInvalidArgument, HasSubstr("names")));
}

TEST(ValidateMessage, BoundsWhatIsToldOfHowAGpuIs) {
  struct Wrong {
    std::function<void(v1::GpuHealth&)> set;
    std::string sentence;
  };
  const std::vector<Wrong> cases = {
      {[](v1::GpuHealth& h) { h.set_uuid(std::string(129, 'x')); }, "gpu_health.uuid: 129 bytes"},
      {[](v1::GpuHealth& h) { h.set_trouble("a\nb"); }, "gpu_health.trouble: \"a\\x0ab\""},
      {[](v1::GpuHealth& h) { h.set_last_xid(-1); }, "gpu_health.last_xid: -1"},
      {[](v1::GpuHealth& h) { h.set_utilization_percent(101); },
       "gpu_health.utilization_percent: 101, expected 0 to 100"},
      {[](v1::GpuHealth& h) { h.set_memory_used_bytes(-1); }, "gpu_health.memory_used_bytes: -1"},
      {[](v1::GpuHealth& h) { h.set_power_watts(1e308); }, "gpu_health.power_watts: 1e+308"},
      {[](v1::GpuHealth& h) { h.set_last_xid_seconds(std::nan("")); },
       "gpu_health.last_xid_seconds: nan"},
      {[](v1::GpuHealth& h) {
         for (int i = 0; i < 17; ++i) h.add_throttle_reasons("power cap");
       },
       "gpu_health.throttle_reasons: 17 entries, expected at most 16"},
      {[](v1::GpuHealth& h) { h.add_throttle_reasons(std::string(65, 'x')); },
       "gpu_health.throttle_reasons: 65 bytes"},
  };
  for (const Wrong& wrong : cases) {
    v1::Heartbeat heartbeat;
    heartbeat.mutable_gpu_health()->set_uuid("GPU-8f3c");
    EXPECT_THAT(ValidateHeartbeat(heartbeat), IsOk());
    wrong.set(*heartbeat.mutable_gpu_health());
    EXPECT_THAT(ValidateHeartbeat(heartbeat),
                StatusIs(Code::kInvalidArgument, HasSubstr(wrong.sentence)));
  }
}

TEST(ValidateMessage, BoundsWhatIsToldOfDevices) {
  struct Wrong {
    std::function<void(v1::DeviceUse&)> set;
    std::string sentence;
  };
  const std::vector<Wrong> cases = {
      {[](v1::DeviceUse& u) { u.mutable_device(); }, "devices.kind"},
      {[](v1::DeviceUse& u) {
         u.mutable_device()->set_kind(v1::MEMORY_KIND_CUDA);
         u.mutable_device()->set_uuid(std::string(129, 'x'));
       },
       "devices.uuid: 129 bytes"},
      {[](v1::DeviceUse& u) { u.set_nccl(std::string(65, '2')); }, "device_use.nccl: 65 bytes"},
      {[](v1::DeviceUse& u) { u.set_no_nccl("a\x1b[31m"); }, "device_use.no_nccl: \"a\\x1b[31m\""},
      {[](v1::DeviceUse& u) { u.set_more_paths(-1); }, "device_use.more_paths: -1"},
      {[](v1::DeviceUse& u) {
         for (int i = 0; i < 9; ++i) u.add_paths();
       },
       "device_use.paths: 9 entries, expected at most 8"},
      {[](v1::DeviceUse& u) { u.add_paths()->set_process_set(-1); }, "paths.process_set: -1"},
      {[](v1::DeviceUse& u) { u.add_paths()->set_why_not(std::string(1025, 'x')); },
       "paths.why_not: 1025 bytes"},
      {[](v1::DeviceUse& u) { u.add_paths()->set_why_flat(std::string(1025, 'x')); },
       "paths.why_flat: 1025 bytes"},
      {[](v1::DeviceUse& u) { u.add_paths()->set_within_node(std::string(257, 'x')); },
       "paths.within_node: 257 bytes"},
      {[](v1::DeviceUse& u) { u.add_paths()->set_between_nodes("a\nb"); },
       "paths.between_nodes: \"a\\x0ab\""},
  };
  for (const Wrong& wrong : cases) {
    v1::Heartbeat heartbeat;
    EXPECT_THAT(ValidateHeartbeat(heartbeat), IsOk());
    wrong.set(*heartbeat.mutable_device_use());
    EXPECT_THAT(ValidateHeartbeat(heartbeat),
                StatusIs(Code::kInvalidArgument, HasSubstr(wrong.sentence)));
  }
}

TEST(ValidateMessage, BoundsWhatIsToldOfEdges) {
  struct Wrong {
    std::function<void(v1::HostEdges&, v1::EdgeGroup&)> set;
    std::string sentence;
  };
  const std::vector<Wrong> cases = {
      {[](v1::HostEdges& e, v1::EdgeGroup&) { e.set_within_node(std::string(65, 'x')); },
       "host_edges.within_node: 65 bytes"},
      {[](v1::HostEdges& e, v1::EdgeGroup&) {
         for (int i = 0; i < 8; ++i) e.add_between_nodes();
       },
       "host_edges.between_nodes: 9 entries, expected at most 8"},
      {[](v1::HostEdges&, v1::EdgeGroup& g) { g.set_over("a\nb"); },
       "between_nodes.over: \"a\\x0ab\""},
      {[](v1::HostEdges&, v1::EdgeGroup& g) { g.clear_over(); }, "between_nodes.over: 0 bytes"},
      {[](v1::HostEdges&, v1::EdgeGroup& g) { g.set_ranks(0); }, "between_nodes.ranks: 0"},
      {[](v1::HostEdges&, v1::EdgeGroup& g) {
         for (int i = 0; i < 17; ++i) g.add_first_ranks(i);
       },
       "between_nodes.first_ranks: 17 entries, expected at most 16"},
      {[](v1::HostEdges&, v1::EdgeGroup& g) { g.add_first_ranks(-1); },
       "between_nodes.first_ranks: -1"},
  };
  for (const Wrong& wrong : cases) {
    v1::Heartbeat heartbeat;
    v1::EdgeGroup& group = *heartbeat.mutable_host_edges()->add_between_nodes();
    group.set_over("tcp");
    group.set_ranks(3);
    EXPECT_THAT(ValidateHeartbeat(heartbeat), IsOk());
    wrong.set(*heartbeat.mutable_host_edges(), group);
    EXPECT_THAT(ValidateHeartbeat(heartbeat),
                StatusIs(Code::kInvalidArgument, HasSubstr(wrong.sentence)));
  }
}

TEST(ValidateHeartbeat, ChecksWhatIsOnADevice) {
  struct Wrong {
    std::function<void(v1::DeviceBatch&)> set;
    std::string sentence;
  };
  const std::vector<Wrong> cases = {
      {[](v1::DeviceBatch& b) { b.set_tensor(std::string(129, 'x')); }, "tensor: 129 bytes"},
      {[](v1::DeviceBatch& b) { b.set_tensor("a\nb"); }, "tensor: \"a\\x0ab\""},
      {[](v1::DeviceBatch& b) { b.clear_tensor(); }, "tensor: 0 bytes"},
      {[](v1::DeviceBatch& b) { b.set_lane(-1); }, "lane: -1"},
      {[](v1::DeviceBatch& b) { b.set_sequence(-1); }, "sequence: -1"},
      {[](v1::DeviceBatch& b) { b.set_tensors(0); }, "tensors: 0"},
      {[](v1::DeviceBatch& b) { b.clear_kind(); }, "kind: 0"},
      {[](v1::DeviceBatch& b) { b.clear_stage(); }, "stage: 0"},
      {[](v1::DeviceBatch& b) { b.set_process_set(-1); }, "process_set: -1"},
  };
  v1::Heartbeat heartbeat;
  v1::DeviceBatch batch;
  batch.set_tensor("grad/3");
  batch.set_sequence(7);
  batch.set_tensors(1);
  batch.set_kind(v1::COLLECTIVE_KIND_ALLREDUCE);
  batch.set_stage(static_cast<v1::DeviceStage>(99));  // of a later worker
  for (const Wrong& wrong : cases) {
    heartbeat.clear_device_batches();
    *heartbeat.add_device_batches() = batch;
    EXPECT_THAT(ValidateHeartbeat(heartbeat), IsOk());
    wrong.set(*heartbeat.mutable_device_batches(0));
    EXPECT_THAT(ValidateHeartbeat(heartbeat),
                StatusIs(Code::kInvalidArgument, HasSubstr("device_batches." + wrong.sentence)));
  }
  heartbeat.clear_device_batches();
  for (int i = 0; i < 5; ++i) *heartbeat.add_device_batches() = batch;
  EXPECT_THAT(
      ValidateHeartbeat(heartbeat),
      StatusIs(Code::kInvalidArgument, HasSubstr("device_batches: 5 entries, expected at most 4")));
}

TEST(ValidateMessage, BoundsARequestForAProcessSet) {
  v1::ProcessSetRequest request;
  request.set_request(1);
  EXPECT_THAT(ValidateProcessSetRequest(request), IsOk());
  request.set_remove(-1);
  EXPECT_THAT(ValidateProcessSetRequest(request),
              StatusIs(Code::kInvalidArgument, HasSubstr("remove: -1, expected at least 0")));
  request.set_remove(0);
  request.set_request(0);
  EXPECT_THAT(ValidateProcessSetRequest(request),
              StatusIs(Code::kInvalidArgument, HasSubstr("request: 0, expected at least 1")));
  request.set_name("tp");
  EXPECT_THAT(ValidateProcessSetRequest(request), IsOk());
  request.set_request(1);
  EXPECT_THAT(ValidateProcessSetRequest(request),
              StatusIs(Code::kInvalidArgument, HasSubstr("request: 1, expected 0 beside a name")));
  request.set_request(0);
  request.set_name(std::string(257, 'x'));
  EXPECT_THAT(ValidateProcessSetRequest(request),
              StatusIs(Code::kInvalidArgument, HasSubstr("name")));
  request.clear_name();
  request.set_request(1);
  for (int32_t i = 0; i < (1 << 17) + 1; ++i) request.add_ranks(i);
  EXPECT_THAT(ValidateProcessSetRequest(request),
              StatusIs(Code::kInvalidArgument, HasSubstr("ranks: 131073 entries")));
}

TEST(Truncated, NeverCutsACharacter) {
  EXPECT_EQ(Truncated("abc", 3), "abc");
  EXPECT_EQ(Truncated("abcd", 3), "abc");
  EXPECT_EQ(Truncated("a\xC3\xA9z", 2), "a");  // é is two bytes
  EXPECT_EQ(Truncated("a\xC3\xA9z", 3), "a\xC3\xA9");
}

TEST(OneLine, KeepsALogLineWhole) { EXPECT_EQ(OneLine("a\nb\x1b[0mc"), "a b [0mc"); }

}  // namespace
}  // namespace coordd
