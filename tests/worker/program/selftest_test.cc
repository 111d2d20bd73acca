// The self-test itself: that it knows right from wrong.
#include "worker/program/selftest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"
#include "worker/api/comm.h"
#include "worker/execute/batch_job.h"
#include "worker/host/loopback_backend.h"
#include "worker/numeric/tensor_values.h"
#include "worker/program/selftest_cases.h"
#include "worker/runtime/submission_check.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job of one rank that carries out each tensor at once, and spoils the one it is told to.
class SpoilingWorker final : public Worker {
 public:
  explicit SpoilingWorker(std::string spoiled = "", absl::Status failure = absl::OkStatus())
      : spoiled_(std::move(spoiled)), failure_(std::move(failure)) {
    COORDD_CHECK(
        backend_.Connect(GroupLayout::OneNode(Rank{0}, 1), store_, absl::InfiniteFuture()).ok());
  }

  Placement placement() const override { return {Generation{1}, 0, 1, 0, 1, 0, 1}; }
  std::string metrics_address() const override { return ""; }
  std::string host_address() const override { return "127.0.0.1"; }
  absl::Status status() const override { return absl::OkStatus(); }
  absl::Status AwaitEnd(absl::Time) override { return absl::OkStatus(); }
  absl::StatusOr<Placement> AwaitGeneration(absl::Time) override { return placement(); }
  void OnGeneration(GenerationCallback) override {}
  absl::Status StartTimeline(const std::string&, bool) override { return absl::OkStatus(); }
  absl::Status StopTimeline() override { return absl::OkStatus(); }
  Store& store() override { return store_; }
  absl::Status Shutdown(absl::Duration) override { return absl::OkStatus(); }
  absl::Status FinishWork(absl::Duration, absl::Duration) override { return absl::OkStatus(); }
  absl::Status Fail(const std::string&, absl::Duration) override { return absl::OkStatus(); }
  absl::Status FailByExit(int, absl::Duration) override { return absl::OkStatus(); }

  absl::StatusOr<std::shared_ptr<Work>> Submit(Submission submission) override {
    auto job = CheckSubmission(std::move(submission), {0, 1, nullptr}, absl::InfiniteFuture(),
                               Clock::Real());
    if (!job.ok()) return job.status();
    std::shared_ptr<Work> work = job->work;
    const bool spoil = work->spec().name == spoiled_;
    if (spoil && !failure_.ok()) {
      work->Complete(failure_, {});
      return work;
    }
    std::vector<TensorJob> jobs;
    jobs.push_back(*std::move(job));
    BatchJob batch({Generation{1}, 0, 1, {}, nullptr}, LaneId{0}, 1, std::move(jobs));
    batch.last_joined_rank = 0;
    if (batch.NeedsSizes()) Exchange(batch.SizeExchange());
    COORDD_CHECK(batch.Prepare().ok());
    std::vector<std::byte> scratch(static_cast<size_t>(batch.ScratchBytes()));
    CollectiveArgs args = batch.Payload(absl::MakeSpan(scratch));
    std::byte* const result = args.output.data();
    Exchange(std::move(args));
    batch.Unpack();
    if (spoil) result[0] ^= std::byte{0x40};
    work->Complete(absl::OkStatus(), std::move(batch.tensors()[0].result));
    return work;
  }
  std::vector<ProcessSetId> ProcessSets() const override { return {}; }
  ProcessSetId last_process_set_found() const override { return {}; }
  absl::StatusOr<std::unique_ptr<Comm>> CreateComm(ProcessSetId, const std::string&,
                                                   absl::Duration) override {
    return absl::UnimplementedError("no comm here");
  }
  absl::StatusOr<void*> AllocateMemory(int64_t) override {
    return absl::UnimplementedError("no memory here");
  }
  absl::Status FreeMemory(void*) override { return absl::OkStatus(); }
  absl::StatusOr<void*> RegisterMemory(const FileRange&, absl::Duration) override {
    return absl::UnimplementedError("no memory here");
  }
  absl::Status UnregisterMemory(void*, absl::Duration) override { return absl::OkStatus(); }
  absl::Status RegisterDeviceMemory(const DeviceRange&, absl::Duration) override {
    return absl::UnimplementedError("none here");
  }
  absl::Status UnregisterDeviceMemory(ProcessSetId, const void*, absl::Duration) override {
    return absl::UnimplementedError("none here");
  }
  absl::Status PrepareGraphs(ProcessSetId, int32_t, absl::Duration) override {
    return absl::UnimplementedError("no graphs here");
  }
  absl::Status CheckGraphs(ProcessSetId, absl::Duration) override { return absl::OkStatus(); }
  absl::Status CheckMapped(const void*, int64_t) const override { return absl::OkStatus(); }
  int32_t newcomers() const override { return 0; }
  std::optional<absl::Duration> drain_left() const override { return std::nullopt; }
  absl::Status AskToLeave(absl::Duration, const std::string&) override { return {}; }
  absl::StatusOr<Placement> ChangeMembers(Generation, absl::Time) override { return Placement(); }
  absl::StatusOr<std::shared_ptr<Work>> SubmitAndWait(Submission submission, absl::Time) override {
    return Submit(std::move(submission));
  }
  absl::StatusOr<std::vector<std::shared_ptr<Work>>> SubmitGroup(PreparedGroup& group,
                                                                 std::vector<TensorBuffers> buffers,
                                                                 absl::Duration) override {
    std::vector<std::shared_ptr<Work>> works;
    for (size_t i = 0; i < buffers.size(); ++i) {
      auto work = Submit(Submission{std::move(buffers[i]), *group.specs()[i], {}});
      if (!work.ok()) return work.status();
      works.push_back(*std::move(work));
    }
    return works;
  }
  // All sets are the same one rank.
  absl::StatusOr<ProcessSetId> AddProcessSet(std::vector<int32_t>, absl::Duration) override {
    return ProcessSetId{++process_sets_};
  }
  absl::StatusOr<ProcessSetId> AddNamedProcessSet(const std::string&, std::vector<int32_t>,
                                                  absl::Duration) override {
    return ProcessSetId{1};
  }
  absl::Status RemoveProcessSet(ProcessSetId, absl::Duration) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<int32_t>> ProcessSetRanks(ProcessSetId) const override {
    return std::vector<int32_t>{0};
  }

 private:
  void Exchange(CollectiveArgs args) {
    bool done = false;
    COORDD_CHECK(backend_.Launch(std::move(args), [&done](absl::Status) { done = true; }).ok());
    while (!done) backend_.Progress();
  }

  const std::string spoiled_;
  const absl::Status failure_;
  int32_t process_sets_ = 0;
  InMemoryStore store_;
  LoopbackBackend backend_;
};

std::string NameOfATensor(CollectiveKind kind, DataType dtype) {
  for (const SelftestCase& one : SelftestCases(0, 1))
    for (const SelftestTensor& tensor : one.tensors)
      if (tensor.spec.kind == kind && tensor.spec.dtype == dtype &&
          NumElements(tensor.spec.shape) > 5)
        return tensor.spec.name;
  return "";
}

TEST(Selftest, PassesWhenEverythingIsRight) {
  SpoilingWorker worker;
  std::ostringstream out;
  const SelftestResult result = RunSelftest(worker, {}, out);
  EXPECT_TRUE(result.ok()) << out.str();
  EXPECT_EQ(result.cases,
            static_cast<int64_t>(SelftestCases(0, 1).size() + SelftestJoinRounds(0, 1).size()));
  EXPECT_THAT(out.str(), HasSubstr("selftest passed"));
}

TEST(Selftest, NamesTheElementThatIsWrong) {
  const std::string name = NameOfATensor(CollectiveKind::kAllreduce, DataType::kInt32);
  SpoilingWorker worker(name);
  std::ostringstream out;
  const SelftestResult result = RunSelftest(worker, {}, out);
  EXPECT_EQ(result.failures, 1);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("rank 0: tensor " + name), HasSubstr("element 0 is "),
                               HasSubstr(", expected "), HasSubstr("selftest FAILED")));
}

TEST(Selftest, CountsATensorWithoutAResult) {
  SpoilingWorker worker(NameOfATensor(CollectiveKind::kBroadcast, DataType::kFloat32),
                        absl::AbortedError("rank 2 was lost"));
  std::ostringstream out;
  EXPECT_EQ(RunSelftest(worker, {.json = true}, out).failures, 1);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("rank 2 was lost"), HasSubstr("\"selftest\":\"failed\"")));
}

// The reference against results worked out by hand.
SelftestTensor Reduction(CollectiveKind kind, ReduceOp op, std::vector<int64_t> shape) {
  SelftestTensor tensor;
  tensor.seed = 7;
  tensor.spec.kind = kind;
  tensor.spec.dtype = DataType::kInt32;
  tensor.spec.op = op;
  tensor.spec.shape = std::move(shape);
  return tensor;
}

TEST(SelftestReference, SumsScalesAndTruncates) {
  SelftestTensor tensor = Reduction(CollectiveKind::kAllreduce, ReduceOp::kAverage, {1});
  tensor.spec.prescale_factor = 0.5;
  int sum = 0;
  for (int32_t rank = 0; rank < 3; ++rank) sum += static_cast<int>(InputValue(tensor, rank, 0)) / 2;
  EXPECT_THAT(ExpectedResult(tensor, 1, 3), ElementsAre(sum / 3));
}

TEST(SelftestReference, GivesTheExtraRowToLowerRanks) {
  const SelftestTensor tensor = Reduction(CollectiveKind::kReducescatter, ReduceOp::kMax, {4, 1});
  auto largest = [&](int64_t row) {
    return std::max(InputValue(tensor, 0, row),
                    std::max(InputValue(tensor, 1, row), InputValue(tensor, 2, row)));
  };
  EXPECT_THAT(ExpectedResult(tensor, 0, 3), ElementsAre(largest(0), largest(1)));
  EXPECT_THAT(ExpectedResult(tensor, 2, 3), ElementsAre(largest(3)));
}

TEST(SelftestReference, ExchangesUnevenRows) {
  SelftestTensor tensor = Reduction(CollectiveKind::kAlltoall, ReduceOp::kNone, {3, 1});
  tensor.rows = {3, 1};
  tensor.splits = {{1, 2}, {0, 1}};
  EXPECT_THAT(ExpectedResult(tensor, 0, 2), ElementsAre(InputValue(tensor, 0, 0)));
  EXPECT_THAT(
      ExpectedResult(tensor, 1, 2),
      ElementsAre(InputValue(tensor, 0, 1), InputValue(tensor, 0, 2), InputValue(tensor, 1, 0)));
  EXPECT_EQ(Tolerance(tensor, 2, 1.0), 0);
}

TEST(SelftestCases, AreTheSameTensorsOnEveryRank) {
  auto first = SelftestCases(0, 3), second = SelftestCases(2, 3);
  for (SelftestCase& round : SelftestJoinRounds(0, 3)) first.push_back(std::move(round));
  for (SelftestCase& round : SelftestJoinRounds(2, 3)) second.push_back(std::move(round));
  ASSERT_EQ(first.size(), second.size());
  std::vector<std::string> differ;
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_EQ(first[i].tensors.size(), second[i].tensors.size());
    for (size_t t = 0; t < first[i].tensors.size(); ++t) {
      if (!Submits(first[i].tensors[t], 0) || !Submits(second[i].tensors[t], 2)) continue;
      const absl::Status same =
          CheckSame(first[i].tensors[t].spec, Rank{0}, second[i].tensors[t].spec, Rank{2});
      if (!same.ok()) differ.push_back(same.ToString());
    }
  }
  EXPECT_THAT(differ, IsEmpty());
}

TEST(TensorValues, SurviveEveryType) {
  for (int dtype = 1; dtype <= static_cast<int>(kLastDataType); ++dtype) {
    const auto type = static_cast<DataType>(dtype);
    std::byte bytes[16] = {};
    WriteElement(type, 1, bytes, 1);
    EXPECT_EQ(ReadElement(type, bytes, 1), 1) << Name(type);
    EXPECT_EQ(ReadElement(type, bytes, 0), 0) << Name(type);
  }
}

}  // namespace
}  // namespace coordd
