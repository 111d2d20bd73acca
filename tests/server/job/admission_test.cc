#include "server/job/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
