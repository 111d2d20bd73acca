// A whole worker against a coordd that the test plays.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/protocol/store_memory.h"
#include "tests/support/hang_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/fake_coordinator_link.h"
#include "tests/worker/support/held_backend.h"
#include "worker/execute/worker_errors.h"
#include "worker/host/loopback_backend.h"
#include "worker/runtime/worker_impl.h"

namespace coordd {

class WorkerImplTest : public ::testing::Test {
 protected:
  WorkerImplTest() {
    options_.coordinator = {"127.0.0.1", 29650};
    options_.worker_id = "worker-0";
    options_.join_timeout = kHangLimit;
    coordinator_.on_start = [this] { SayMembership(); };
  }

  void SayMembership() {
    v1::CoordinatorMessage message = Message();
    v1::Membership& membership = *message.mutable_membership();
    membership.set_size(1);
    membership.set_local_size(1);
    membership.set_cross_size(1);
    membership.add_nodes()->set_nodes(1);
    membership.mutable_nodes(0)->set_ranks_per_node(1);
    membership.mutable_heartbeat_interval()->set_seconds(3600);
    membership.mutable_lease()->set_seconds(36000);
    membership.set_store_prefix(absl::StrCat("g", generation_, "/"));
    coordinator_.Say(message);
  }
  // Ends the generation, takes the report, forms the next one.
  void ChangeGeneration() {
    v1::CoordinatorMessage abort = Message();
    abort.mutable_abort()->set_in_flight(true);
    abort.mutable_abort()->set_reforms(true);
    abort.mutable_abort()->set_reason("rank 1 (host node3, pid 4711) was lost");
    coordinator_.Say(abort);
    EXPECT_TRUE(coordinator_.ReceiveNext().has_recovery_report());
    ++generation_;
    SayMembership();
  }

  v1::CoordinatorMessage Message() const {
    v1::CoordinatorMessage message;
    message.set_epoch(1);
    message.set_generation(generation_);
    return message;
  }
  template <typename... Name>
  void Plan(int64_t sequence, const Name&... tensors) {
    v1::CoordinatorMessage message = Message();
    v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
    batch.set_sequence(sequence);
    (batch.add_tensors(tensors), ...);
    coordinator_.Say(message);
  }

  absl::StatusOr<std::unique_ptr<Worker>> Start() {
    WorkerSeams seams;
    seams.make_link = [this] { return std::make_unique<FakeCoordinatorLink>(coordinator_); };
    seams.store = std::make_unique<InMemoryStore>();
    seams.make_backend =
        [this](const GroupLayout&) -> absl::StatusOr<std::unique_ptr<CollectiveBackend>> {
      if (!backend_status_.ok()) return backend_status_;
      if (hold_ || !connect_status_.ok())
        return std::make_unique<HeldBackend>(held_, connect_status_);
      return std::make_unique<LoopbackBackend>();
    };
    return StartWorker(options_, std::move(seams), Clock::Real());
  }

  // The coordinator does not answer the goodbye: a destructor would wait for that.
  static void Stop(Worker& worker) { worker.Shutdown(absl::Milliseconds(1)).IgnoreError(); }

  Submission Sum(const std::string& name) {
    Submission submission;
    submission.spec.name = name;
    submission.spec.op = ReduceOp::kSum;
    submission.spec.shape = {4};
    submission.input = submission.output = values_;
    return submission;
  }

  WorkerOptions options_;
  absl::Status backend_status_, connect_status_;
  bool hold_ = false;  // what is launched
  HeldBatches held_;
  int64_t generation_ = 1;
  FakeCoordinator coordinator_;
  float values_[4] = {1, 2, 3, 4};
};

}  // namespace coordd
