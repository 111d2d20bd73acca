#include "client/coordctl/edge_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

namespace coordd {
namespace {

v1::WorkerState& AddRank(v1::JobState& job, int32_t rank, const char* within,
                         std::initializer_list<const char*> between) {
  v1::WorkerState& worker = *job.add_workers();
  worker.set_rank(rank);
  worker.mutable_host_edges()->set_within_node(within);
  for (const char* over : between) {
    v1::EdgeGroup& group = *worker.mutable_host_edges()->add_between_nodes();
    group.set_over(over);
    group.set_ranks(1);
  }
  return worker;
}

TEST(EdgesText, NamesTheTransportThatAllHave) {
  v1::JobState job;
  EXPECT_EQ(EdgesText(job), "");
  job.add_workers()->set_rank(3);  // of a version that does not tell
  EXPECT_EQ(EdgesText(job), "");
  EXPECT_EQ(EdgeText(job.workers(0)), "-");
  EXPECT_EQ(EdgeText(AddRank(job, 0, "mapped", {})), "mapped");
  EXPECT_EQ(EdgesText(job), "  edges in nodes: mapped\n");
  EXPECT_EQ(EdgeText(AddRank(job, 1, "mapped", {"tcp encrypted"})), "mapped, tcp encrypted");
  EXPECT_EQ(EdgeText(AddRank(job, 2, "", {"tcp encrypted"})), "tcp encrypted");
  EXPECT_EQ(EdgesText(job),
            "  edges in nodes: mapped\n"
            "  edges between nodes: tcp encrypted\n");
}

TEST(EdgesText, SaysWhichRanksHaveWhichWhereTheyAreMixed) {
  v1::JobState job;
  AddRank(job, 4, "shm", {"tcp"});
  AddRank(job, 2, "mapped", {"tcp"});
  EXPECT_EQ(EdgeText(AddRank(job, 1, "mapped", {"tcp", "ucx rdma"})), "mapped, tcp + ucx rdma");
  AddRank(job, 0, "mapped", {"ucx rdma"});
  AddRank(job, -1, "shm", {"ucx"});  // waits for the next generation
  EXPECT_EQ(EdgesText(job),
            "  edges in nodes: mixed: mapped of ranks 0-2; shm of rank 4\n"
            "  edges between nodes: mixed: tcp of ranks 1-2, 4; ucx rdma of ranks 0-1\n");
}

}  // namespace
}  // namespace coordd
