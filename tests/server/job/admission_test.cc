#include "server/job/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::Join WithGpu(v1::Join join, const std::string& uuid, const std::string& nccl) {
  v1::Device* device = join.add_devices();
  device->set_kind(v1::MEMORY_KIND_CUDA);
  device->set_uuid(uuid);
  join.mutable_versions()->set_nccl(nccl);
  return join;
}

TEST(Admission, TakesAWorkerIdOnce) {
  Admission admission;
  admission.Add(JoinOf("a"));
  EXPECT_THAT(admission.Check(JoinOf("a")),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("worker a")));
  admission.Remove(JoinOf("a"));
  EXPECT_THAT(admission.Check(JoinOf("a")), IsOk());
}

TEST(Admission, RefusesASecondRankOnOneGpuUntilTheFirstIsGone) {
  Admission admission;
  const v1::Join first = WithGpu(JoinOf("a"), "GPU-1", "2.28");
  const v1::Join second = WithGpu(JoinOf("b"), "GPU-1", "2.28");
  admission.Add(first);
  EXPECT_THAT(admission.Check(second), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                AllOf(HasSubstr("b and a"), HasSubstr("GPU-1"))));
  admission.Remove(first);
  EXPECT_THAT(admission.Check(second), IsOk());
}

v1::Join Launched(const std::string& id, const std::string& node, int32_t rank, int32_t started) {
  v1::Join join = JoinOf(id);
  join.mutable_host()->set_node_id(node);
  join.mutable_host()->set_hostname(node);
  join.set_launch("run-" + node + ".0." + id);
  join.set_launcher_rank(rank);
  join.set_launcher_local_size(started);
  return join;
}

TEST(Admission, RefusesARankOfTwoNodesAndSaysHowManyEachStarts) {
  Admission admission;
  for (int32_t rank : {0, 1, 2})
    admission.Add(Launched("a" + std::to_string(rank), "host-a", rank, 3));
  const v1::Join second = Launched("b0", "host-b", 2, 2);
  EXPECT_THAT(admission.Check(second),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "two workers are rank 2 to their launchers: a2 on host host-a, where 3 "
                       "workers are started, and b0 on host host-b, where 2 workers are started: "
                       "expected as many on each node (-np of coordrun), or --first-rank where "
                       "they differ"));
  admission.Remove(Launched("a2", "host-a", 2, 3));
  EXPECT_THAT(admission.Check(second), IsOk());
}

TEST(Admission, TakesARankTwiceWhereNobodyHasCountedThemOut) {
  Admission admission;
  admission.Add(Launched("a", "host-a", 2, 3));
  EXPECT_THAT(admission.Check(Launched("b", "host-a", 2, 3)), IsOk());  // its child, say
  v1::Join elsewhere = Launched("c", "host-b", 2, 2);
  elsewhere.set_on_failure(v1::ON_FAILURE_RAISE);  // it takes a lost one's place
  EXPECT_THAT(admission.Check(elsewhere), IsOk());
  for (const auto& [launch, rank, started] :
       {std::tuple("", 2, 2), std::tuple("x", -1, 2), std::tuple("x", 2, 0)}) {
    v1::Join untold = Launched("d", "host-b", rank, started);
    untold.set_launch(launch);
    EXPECT_THAT(admission.Check(untold), IsOk());
  }
}

TEST(Admission, RefusesAWorkerThatNamesAGpuTwice) {
  EXPECT_THAT(Admission().Check(WithGpu(WithGpu(JoinOf("a"), "GPU-1", ""), "GPU-1", "")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("twice")));
}

TEST(Admission, HoldsNcclVersionsOfWorkersWithGpusTogether) {
  Admission admission;
  admission.Add(WithGpu(JoinOf("a"), "GPU-1", "2.28.9"));
  EXPECT_THAT(admission.Check(WithGpu(JoinOf("b"), "GPU-2", "")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("NCCL none"), HasSubstr("NCCL 2.28.9"))));
  v1::Join without_gpu = JoinOf("c");
  without_gpu.mutable_versions()->set_nccl("2.20");
  EXPECT_THAT(admission.Check(without_gpu), IsOk());
}

TEST(Admission, AllowsMinorVersionsOfCoorddToDiffer) {
  Admission admission;
  admission.Add(JoinOf("a"));
  v1::Join other = JoinOf("b");
  other.mutable_versions()->set_coordd("0.2.0");
  EXPECT_THAT(admission.Check(other), IsOk());
}

TEST(Admission, ForgetsANodeWithItsLastWorker) {
  Admission admission;
  v1::Join labelled = JoinOf("a", "n0");
  labelled.mutable_host()->add_topology("rack1");
  admission.Add(labelled);
  EXPECT_THAT(admission.Check(JoinOf("b", "n0")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rack1")));
  admission.Remove(labelled);
  admission.Remove(labelled);  // again: nothing
  EXPECT_THAT(admission.Check(JoinOf("b", "n0")), IsOk());
  EXPECT_EQ(admission.size(), 0u);
}

}  // namespace
}  // namespace coordd
