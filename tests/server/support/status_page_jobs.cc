// A coordd with four jobs in the states that an operator looks for, on a clock of its own: resnet50
// runs with a straggler, llama stalls, digits has lost a rank, queue still gathers. Prints the HTTP
// port and serves until its standard input ends. For status_page_test.py and for a look by eye.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "tests/support/fake_clock.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

class FakeJob {
 public:
  FakeJob(TestServer& server, FakeClock& clock, const std::string& name, int nodes,
          int ranks_per_node, int missing = 0)
      : clock_(clock) {
    const int size = nodes * ranks_per_node;
    for (int i = 0; i < size - missing; ++i) {
      v1::WorkerMessage message = JoinMessage(name, absl::StrCat(name, "-", i), size);
      v1::Join& join = *message.mutable_join();
      join.mutable_host()->set_hostname(absl::StrCat("node", 1 + i / ranks_per_node));
      join.mutable_host()->set_node_id(absl::StrCat("node", 1 + i / ranks_per_node));
      join.set_pid(4100 + i);
      join.set_launcher_rank(i);
      join.set_metrics_address(absl::StrCat("10.0.0.", 1 + i / ranks_per_node, ":", 9400 + i));
      workers_.push_back(std::make_unique<RawWorker>(server.Channel()));
      COORDD_CHECK(workers_.back()->Send(message));
    }
    if (missing > 0) return;
    for (auto& worker : workers_)
      COORDD_CHECK(worker->ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  }

  // Every rank submits a tensor, `slow` a while after the others, and all of them reduce it.
  void Step(int slow, absl::Duration lag) {
    const std::string tensor = absl::StrCat("layer", step_ % 50, ".weight");
    for (auto& worker : workers_) {
      if (worker->rank == slow) continue;
      worker->Ready(tensor, 25'000'000);
      Beat(*worker, "");
    }
    clock_.Advance(lag);
    for (auto& worker : workers_) {
      if (worker->rank == slow) worker->Ready(tensor, 25'000'000);
    }
    for (auto& worker : workers_)
      COORDD_CHECK(worker->ReadUntil(v1::CoordinatorMessage::kPlan).has_plan());
    ++step_;
  }

  // Ranks in `missing` never submit `tensor`; the others wait for it.
  void Stall(const std::string& tensor, const std::vector<int>& missing) {
    waiting_for_ = tensor;
    missing_ = missing;
    for (auto& worker : workers_) {
      if (!IsMissing(worker->rank)) worker->Ready(tensor, 1000);
    }
  }

  void BeatAll() {
    for (auto& worker : workers_) Beat(*worker, IsMissing(worker->rank) ? "" : waiting_for_);
  }

  void Lose(int rank) {
    std::erase_if(workers_, [rank](const auto& worker) { return worker->rank == rank; });
    for (auto& worker : workers_)
      COORDD_CHECK(worker->ReadUntil(v1::CoordinatorMessage::kAbort).has_abort());
  }

 private:
  bool IsMissing(int rank) const {
    return std::find(missing_.begin(), missing_.end(), rank) != missing_.end();
  }

  // Returns once coordd has seen it and everything before it.
  void Beat(RawWorker& worker, const std::string& oldest_waiting) {
    v1::WorkerMessage message;
    v1::Heartbeat& beat = *message.mutable_heartbeat();
    beat.set_collectives_completed(step_);
    beat.set_bytes_reduced(int64_t{100'000'000} * step_);
    v1::LanePosition& lane = *beat.add_lanes();
    lane.set_launched(step_ + (worker.rank % 3 == 0 && oldest_waiting.empty() ? 1 : 0));
    lane.set_completed(step_);
    lane.set_oldest_waiting(oldest_waiting);
    worker.Send(message);
    COORDD_CHECK(worker.ReadUntil(v1::CoordinatorMessage::kLeaseAck).has_lease_ack());
  }

  FakeClock& clock_;
  std::vector<std::unique_ptr<RawWorker>> workers_;
  int64_t step_ = 0;
  std::string waiting_for_;
  std::vector<int> missing_;
};

void Main() {
  SetLogLevel(LogLevel::kError);
  FakeClock clock;
  CoordServerOptions options = TestServerOptions();
  options.any_metrics_address = true;  // nodes of a cluster that is not there
  TestServer server(options, clock);
  FakeJob llama(server, clock, "llama-7b", 2, 4);
  FakeJob digits(server, clock, "digits", 1, 3);
  FakeJob queue(server, clock, "queue", 1, 4, /*missing=*/3);
  FakeJob resnet(server, clock, "resnet50", 4, 4);
  for (int i = 0; i < 10; ++i) llama.Step(/*slow=*/1, absl::Milliseconds(1));
  llama.Stall("transformer.h.11.mlp.weight", {2, 6});
  digits.Lose(1);
  for (int second = 0; second < 12; ++second) {
    clock.Advance(absl::Milliseconds(700));
    for (int i = 0; i < 6; ++i) resnet.Step(/*slow=*/9, absl::Milliseconds(50));
    for (FakeJob* job : {&llama, &digits, &queue, &resnet}) job->BeatAll();
  }
  std::cout << server->http_address()->port << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
  }
}

}  // namespace
}  // namespace coordd

int main() { coordd::Main(); }
