#include "client/coordctl/state_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::WorkerState* AddWorker(v1::JobState* job, int rank, const std::string& node, int pid) {
  v1::WorkerState* worker = job->add_workers();
  worker->set_rank(rank);
  worker->set_local_rank(rank % 2);
  worker->set_hostname(node);
  worker->set_node_id("id-" + node);
  worker->set_pid(pid);
  worker->set_activity(rank == 0 ? "executing" : "waiting for grad/17 (rank 3 missing)");
  worker->set_collectives_completed(460);
  worker->set_bytes_reduced(8 << 20);
  worker->set_seconds_since_heard(0.25);
  return worker;
}

v1::ServerState TwoNodes() {
  v1::ServerState state;
  state.set_version("0.1.0");
  state.set_listen("10.0.0.1:7400");
  state.set_http("127.0.0.1:7480");
  state.set_uptime_seconds(720);
  v1::JobState* job = state.add_jobs();
  job->set_name("train");
  job->set_phase(v1::JOB_PHASE_RUNNING);
  job->set_seconds_in_phase(30);
  job->set_generation(2);
  job->set_size(4);
  job->set_joined(4);
  job->set_min_workers(4);
  job->set_max_workers(8);
  job->set_batches_planned(12);
  job->set_bytes_per_second(3 * 1024 * 1024);
  // In no particular order.
  AddWorker(job, 3, "b", 13);
  AddWorker(job, 0, "a", 10);
  AddWorker(job, 2, "b", 12);
  AddWorker(job, 1, "a", 11);
  return state;
}

TEST(StatusText, ShowsRanksByNodeInOrderWithWhatEachDoes) {
  const std::string text = StatusText(TwoNodes());
  EXPECT_THAT(text, HasSubstr("coordd 0.1.0 at 10.0.0.1:7400, up 12 min, status page at "
                              "http://127.0.0.1:7480/\n"));
  EXPECT_THAT(text, HasSubstr("job train: running for 30 s, generation 2 of 4 ranks, 4 connected "
                              "(min 4, max 8)\n"));
  EXPECT_THAT(text, HasSubstr("now 3.0 MiB/s"));
  size_t at = 0;
  for (const char* part :
       {"node a (2 workers)", " 10 ", " 11 ", "node b (2 workers)", " 12 ", " 13 "}) {
    const size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << "\n" << text;
    at = found;
  }
  EXPECT_THAT(text, HasSubstr("waiting for grad/17 (rank 3 missing)"));
}

TEST(StatusText, ShowsTheConnectionsAndWhoWasRefused) {
  v1::ServerState state = TwoNodes();
  EXPECT_THAT(StatusText(state), Not(HasSubstr("connections")));  // of an older coordd
  state.mutable_connections()->set_open(5);
  state.mutable_connections()->set_max(509);
  EXPECT_THAT(StatusText(state), HasSubstr("/, 5 of at most 509 connections\njob train"));
  (*state.mutable_connections()->mutable_refused())["tls"] = 2;
  (*state.mutable_connections()->mutable_refused())["silent"] = 1;
  EXPECT_THAT(StatusText(state),
              HasSubstr("connections refused since it was started: 3 (silent 1, tls 2)\n"));
}

TEST(StatusText, KeepsTheFiguresOfAJobThatHasEnded) {
  v1::ServerState state = TwoNodes();
  v1::JobState* job = state.mutable_jobs(0);
  job->set_phase(v1::JOB_PHASE_ENDED);
  job->set_size(0);  // as coordd tells it: they are of a generation
  job->set_batches_planned(0);
  job->set_batches_total(345);
  job->set_bytes_total(3 * 1024 * 1024);
  const std::string text = StatusText(state);
  EXPECT_THAT(text, HasSubstr("job train: ended for 30 s, after generation 2, "));
  EXPECT_THAT(text, HasSubstr("  executed 345 batches, 3.0 MiB a rank in all\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("planned")));
}

TEST(StatusText, NamesStallsAndDepartures) {
  v1::ServerState state = TwoNodes();
  v1::StalledTensor* stall = state.mutable_jobs(0)->add_stalled();
  stall->set_name("grad/17");
  stall->set_waiting_seconds(12.4);
  for (const int rank : {0, 1, 2}) stall->add_ready_ranks(rank);
  stall->set_ready_count(3);
  stall->add_missing_ranks(3);
  stall->set_missing_count(1);
  v1::Departure* departure = state.mutable_jobs(0)->add_departures();
  departure->set_rank(1);
  departure->set_hostname("a");
  departure->set_pid(9);
  departure->set_cause(v1::DEPARTURE_CAUSE_LEASE_EXPIRED);
  v1::WorkerState* stuck = state.mutable_jobs(0)->mutable_workers(0);
  stuck->set_stack("main thread:\n  File \"train.py\", line 12 in read");
  const std::string text = StatusText(state);
  EXPECT_THAT(text, HasSubstr("stalled for 12 s: grad/17; ranks in: 0, 1, 2; ranks missing: 3\n"));
  EXPECT_THAT(text, HasSubstr("rank 1 (host a, pid 9) was silent for longer than its lease\n"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("  the others wait for rank ", stuck->rank(),
                                           ", which is at\n    main thread:\n"
                                           "      File \"train.py\", line 12 in read\n")));
}

TEST(StatusText, SaysThatARankHasAPartOfAGpu) {
  v1::ServerState state = TwoNodes();
  v1::DeviceUse& use = *state.mutable_jobs(0)->mutable_workers(0)->mutable_device_use();
  use.mutable_device()->set_model("NVIDIA H200");
  use.set_nccl("2.28.9");
  use.set_sharing("MPS");
  EXPECT_THAT(StatusText(state), HasSubstr("NVIDIA H200 (a part: MPS), NCCL 2.28.9\n"));
}

TEST(StatusText, SaysOnWhichDeviceABatchStands) {
  v1::StalledTensor stall;
  stall.set_name("allreduce grad/3 (+41) on the device");
  stall.set_waiting_seconds(12);
  stall.set_process_set(2);
  stall.add_ready_ranks(0);
  stall.set_on_devices("started on rank 0, enqueued on rank 3 (GPU-8f3c, host b)");
  EXPECT_EQ(StallText(stall),
            "stalled for 12 s: allreduce grad/3 (+41) on the device (process set 2): started on "
            "rank 0, enqueued on rank 3 (GPU-8f3c, host b)");
}

TEST(StatusText, SaysHowManyRanksAListLeavesOut) {
  v1::StalledTensor stall;
  stall.set_name("x");
  for (int rank = 0; rank < 64; ++rank) stall.add_missing_ranks(rank);
  stall.set_missing_count(1000);
  stall.set_ready_count(24);
  EXPECT_THAT(StallText(stall), HasSubstr("63 and 936 more"));
  EXPECT_THAT(StallText(stall), HasSubstr("ranks in: none and 24 more"));
}

TEST(StatusText, NamesProcessSetsAndWhoHasJoined) {
  v1::ServerState state = TwoNodes();
  EXPECT_THAT(StatusText(state), Not(HasSubstr("process sets")));
  v1::JobState* job = state.mutable_jobs(0);
  job->set_process_sets(3);
  job->set_pairs(1);
  job->add_joined_ranks(2);
  job->set_joined_count(1);
  v1::StalledTensor* stall = job->add_stalled();
  stall->set_name("grad/17");
  stall->set_process_set(3);
  const std::string text = StatusText(state);
  EXPECT_THAT(text, HasSubstr("process sets: 3, and 1 pair for send and receive\n"));
  EXPECT_THAT(text, HasSubstr("joined, with no more data: rank 2\n"));
  EXPECT_THAT(text, HasSubstr("grad/17 (process set 3); ranks in"));
}

TEST(StatusText, ShowsOverWhatEachRankReachesTheOthers) {
  v1::ServerState state = TwoNodes();
  EXPECT_THAT(StatusText(state), Not(HasSubstr("edges")));
  v1::JobState* job = state.mutable_jobs(0);
  for (v1::WorkerState& worker : *job->mutable_workers()) {
    if (worker.rank() == 3) continue;  // of a version that does not tell
    worker.mutable_host_edges()->set_within_node("mapped");
    worker.mutable_host_edges()->add_between_nodes()->set_over("tcp");
  }
  const std::string text = StatusText(state);
  EXPECT_THAT(text, HasSubstr("  edges       doing\n"));
  EXPECT_THAT(text, HasSubstr("  mapped, tcp "));
  EXPECT_THAT(text, HasSubstr("  -           "));
  EXPECT_THAT(text, HasSubstr("  edges in nodes: mapped\n  edges between nodes: tcp\n"));
}

TEST(StatusText, ShowsTheGpuOfEachRankAndHowTensorsTravel) {
  v1::ServerState state = TwoNodes();
  EXPECT_THAT(StatusText(state), Not(HasSubstr("gpu")));
  v1::JobState* job = state.mutable_jobs(0);
  for (v1::WorkerState& worker : *job->mutable_workers()) {
    v1::DeviceUse& use = *worker.mutable_device_use();
    use.mutable_device()->set_index(worker.local_rank());
    use.mutable_device()->set_model("NVIDIA H200");
    use.mutable_device()->set_uuid("GPU-8f3c0a12-1111-2222-3333-444455556666");
    use.set_nccl("2.28.9");
    v1::TensorPath& path = *use.add_paths();
    path.set_nccl(true);
    path.set_within_node("NVLink");
    path.set_between_nodes("RDMA, GPUDirect");
  }
  std::string text = StatusText(state);
  EXPECT_THAT(text, HasSubstr(" 1 GPU-8f3c0a12  "));
  EXPECT_THAT(text, HasSubstr("  GPUs of ranks 0-3: NVIDIA H200, NCCL 2.28.9\n"
                              "    tensors: by NCCL; in a node: NVLink; between nodes: RDMA, "
                              "GPUDirect\n"));
  for (v1::WorkerState& worker : *job->mutable_workers())
    worker.mutable_device_use()->mutable_paths(0)->set_hierarchical(true);
  EXPECT_THAT(StatusText(state),
              HasSubstr("GPUDirect; allreduces hierarchical: between nodes by the host\n"));
  for (v1::WorkerState& worker : *job->mutable_workers()) {
    worker.mutable_device_use()->mutable_paths(0)->set_hierarchical(false);
    worker.mutable_device_use()->mutable_paths(0)->set_why_flat("all ranks are on one machine");
  }
  EXPECT_THAT(StatusText(state),
              HasSubstr("; allreduces flat, since all ranks are on one machine\n"));
  for (v1::WorkerState& worker : *job->mutable_workers())
    worker.mutable_device_use()->mutable_paths(0)->clear_why_flat();
  // Of rank 3, and a set of its own.
  v1::DeviceUse& use = *job->mutable_workers(0)->mutable_device_use();
  use.clear_nccl();
  use.set_no_nccl("libnccl.so.2: cannot open");
  use.mutable_paths(0)->Clear();
  use.mutable_paths(0)->set_why_not("rank 3 has no NCCL");
  v1::TensorPath& refused = *use.add_paths();
  refused.set_process_set(2);
  refused.set_refused(true);
  refused.set_why_not("two ranks use GPU 0");
  use.set_more_paths(7);
  text = StatusText(state);
  EXPECT_THAT(text, HasSubstr("  GPUs of ranks 0-2: NVIDIA H200, NCCL 2.28.9\n"));
  EXPECT_THAT(text, HasSubstr("  GPUs of rank 3: NVIDIA H200, no NCCL: libnccl.so.2: cannot open\n"
                              "    tensors: through pinned host memory, since rank 3 has no NCCL\n"
                              "    tensors of process set 2: refused: two ranks use GPU 0\n"
                              "    and of 7 more process sets\n"));
}

TEST(StatusText, ShowsWorkersThatWaitForAGenerationLast) {
  v1::ServerState state;
  v1::JobState* job = state.add_jobs();
  job->set_name("early");
  job->set_phase(v1::JOB_PHASE_GATHERING);
  job->set_min_workers(2);
  job->set_joined(1);
  AddWorker(job, -1, "a", 10);
  const std::string text = StatusText(state);
  EXPECT_THAT(text, HasSubstr("job early: gathering for 0.0 s, 1 connected (min 2)\n"));
  EXPECT_THAT(text, HasSubstr("node a (1 worker)"));
  EXPECT_THAT(text, Not(HasSubstr("generation")));
  EXPECT_THAT(text, Not(HasSubstr("-1")));
}

TEST(StatusText, SaysThatThereIsNoJob) {
  EXPECT_THAT(StatusText(v1::ServerState()), HasSubstr("no job"));
}

TEST(JobsText, HasALineForEachJob) {
  const std::string text = JobsText(TwoNodes());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, HasSubstr("train "));
  EXPECT_THAT(text, HasSubstr("running"));
  const auto json = nlohmann::json::parse(JobsJson(TwoNodes()));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["name"], "train");
  EXPECT_EQ(json[0]["phase"], "running");
  EXPECT_EQ(json[0]["joined"], 4);
}

TEST(DurationText, ChoosesItsUnit) {
  EXPECT_EQ(DurationText(-1), "0.0 s");
  EXPECT_EQ(DurationText(0.34), "0.3 s");
  EXPECT_EQ(DurationText(59), "59 s");
  EXPECT_EQ(DurationText(300), "5 min");
  EXPECT_EQ(DurationText(7560), "2.1 h");
  EXPECT_EQ(DurationText(259200), "3.0 d");
}

TEST(BytesText, ChoosesItsUnit) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(1e30).substr(BytesText(1e30).size() - 3), "EiB");
}

}  // namespace
}  // namespace coordd
