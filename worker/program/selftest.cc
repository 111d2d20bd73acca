#include "worker/program/selftest.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/random.h"
#include "worker/numeric/tensor_values.h"
#include "worker/program/selftest_cases.h"

namespace coordd {
namespace {

// Buffers are written beyond their end if something is wrong with an offset: these bytes must stay.
constexpr int64_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};
// Mismatches shown per tensor; the rest is counted.
constexpr int kMismatchesShown = 3;

// One tensor of a case with its memory.
struct Item {
  const SelftestTensor* tensor = nullptr;
  std::vector<std::byte> input, output;
  int64_t output_bytes = 0;
  std::shared_ptr<Work> work;
};

struct Row {
  int64_t cases = 0, tensors = 0, elements = 0, failures = 0;
};

class Selftest {
 public:
  Selftest(Worker& worker, const SelftestOptions& options, std::ostream& out)
      : worker_(worker), options_(options), out_(out), place_(worker.placement()) {}

  SelftestResult Run() {
    const std::vector<SelftestCase> cases = SelftestCases(place_.rank, place_.size);
    const bool has_sets = AddProcessSets();
    const size_t all = cases.size() + static_cast<size_t>(place_.rank) + 1;  // rounds of the join
    if (speaks())
      out_ << "selftest: " << all << " cases on " << place_.size << " ranks\n" << std::flush;
    for (const SelftestCase& one : cases) {
      if (current_row_ != one.row) Progress(one.row);
      if (!has_sets || !RunCase(one)) break;
    }
    if (worker_.status().ok() && has_sets) {
      RemoveProcessSets();
      RunJoin();
    }
    Progress("");
    if (worker_.status().ok()) AddFailuresOfOthers();
    PrintEnd();
    return result_;
  }

 private:
  bool speaks() const { return place_.rank == 0; }

  // A line when a row of the table is through.
  void Progress(const std::string& next) {
    if (speaks() && !current_row_.empty() && current_row_ != next) {
      const Row& row = rows_[current_row_];
      out_ << absl::StrFormat(
                  "  %-46s %5d tensors %10d elements  %s\n", current_row_, row.tensors,
                  row.elements,
                  row.failures == 0 ? std::string("ok") : absl::StrCat(row.failures, " FAILED"))
           << std::flush;
    }
    current_row_ = next;
  }

  // The sets of the cases, by their index from 1.
  bool AddProcessSets() {
    for (const std::vector<int32_t>& ranks : SelftestSets(place_.size)) {
      const auto added = worker_.AddProcessSet(ranks, options_.timeout);
      if (!added.ok()) {
        Fail("process sets", absl::StrCat("a process set: ", added.status().message()));
        return false;
      }
      sets_.push_back(*added);
    }
    return true;
  }
  void RemoveProcessSets() {
    for (size_t s = 1; s < sets_.size(); ++s) {
      const absl::Status removed = worker_.RemoveProcessSet(sets_[s], options_.timeout);
      if (!removed.ok())
        Fail("process sets", absl::StrCat("the end of a process set: ", removed.message()));
    }
  }

  // Rank r runs out of data after r + 1 rounds.
  void RunJoin() {
    const std::vector<SelftestCase> rounds = SelftestJoinRounds(place_.rank, place_.size);
    for (int32_t i = 0; i <= place_.rank; ++i) {
      const SelftestCase& round = rounds[static_cast<size_t>(i)];
      if (current_row_ != round.row) Progress(round.row);
      if (!RunCase(round)) return;
    }
    Submission submission;
    submission.spec.name = kJoinName;
    submission.spec.kind = CollectiveKind::kJoin;
    submission.spec.dtype = DataType::kInt32;
    submission.timeout = options_.timeout;
    const auto work = worker_.Submit(std::move(submission));
    const absl::Status status = work.ok() ? (*work)->Wait(absl::InfiniteFuture()) : work.status();
    if (!status.ok()) return Fail(current_row_, absl::StrCat("the join: ", status.message()));
    int32_t last = -1;
    std::memcpy(&last, (*work)->result().owned_output.get(), sizeof(last));
    if (last != place_.size - 1)
      Fail(current_row_,
           absl::StrCat("the join: rank ", last, " was last, expected rank ", place_.size - 1));
  }

  void Prepare(Item& item) {
    const TensorSpec& spec = item.tensor->spec;
    const int64_t element_bytes = SizeOf(spec.dtype);
    const int64_t elements = HasPayload(spec.kind) ? NumElements(spec.shape) : 0;
    item.input.resize(static_cast<size_t>(elements * element_bytes));
    for (int64_t i = 0; i < elements; ++i)
      WriteElement(spec.dtype, InputValue(*item.tensor, place_.rank, i), item.input.data(), i);
    const auto expected =
        static_cast<int64_t>(ExpectedResult(*item.tensor, place_.rank, place_.size).size());
    item.output_bytes = expected * element_bytes;
    item.output.assign(static_cast<size_t>(item.output_bytes + kGuardBytes), kGuard);
    if (item.tensor->in_place) std::copy(item.input.begin(), item.input.end(), item.output.begin());
  }

  Submission SubmissionOf(Item& item) {
    Submission submission;
    submission.spec = item.tensor->spec;
    submission.spec.process_set = sets_[static_cast<size_t>(item.tensor->set)];
    submission.timeout = options_.timeout;
    submission.input = item.tensor->in_place ? item.output.data() : item.input.data();
    if (!item.tensor->own_output) {
      // The runtime allocates the result.
    } else {
      submission.output = item.output.data();
      submission.output_capacity_bytes = item.output_bytes;
    }
    if (!item.tensor->splits.empty())
      submission.splits = item.tensor->splits[MemberIndex(*item.tensor, place_.rank)];
    return submission;
  }

  // False when nothing more can be run.
  bool RunCase(const SelftestCase& one) {
    std::vector<Item> items;
    items.reserve(one.tensors.size());
    for (const SelftestTensor& tensor : one.tensors) {
      if (!Submits(tensor, place_.rank)) continue;
      items.emplace_back();
      items.back().tensor = &tensor;
      Prepare(items.back());
    }
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (one.shuffled) {
      Random random(static_cast<uint64_t>(place_.rank) + 1);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    }
    ++result_.cases;
    const absl::Status submitted = Submit(one, items, order);
    if (!submitted.ok()) {
      Fail(one.row, absl::StrCat(one.name, ": ", submitted.message()));
      return false;
    }
    for (Item& item : items) Check(one, item);
    return worker_.status().ok();
  }

  absl::Status Submit(const SelftestCase& one, std::vector<Item>& items,
                      const std::vector<size_t>& order) {
    if (one.grouped) {
      std::vector<Submission> submissions;
      for (Item& item : items) submissions.push_back(SubmissionOf(item));
      auto works = worker_.SubmitGroup(absl::StrCat("selftest ", one.name), std::move(submissions));
      if (!works.ok()) return works.status();
      for (size_t i = 0; i < items.size(); ++i) items[i].work = (*works)[i];
      return absl::OkStatus();
    }
    for (size_t i : order) {
      auto work = worker_.Submit(SubmissionOf(items[i]));
      if (!work.ok()) return work.status();
      items[i].work = *work;
    }
    return absl::OkStatus();
  }

  void Check(const SelftestCase& one, Item& item) {
    const SelftestTensor& tensor = *item.tensor;
    // Its own deadline ends the Work; this one is for a runtime that forgets to.
    const absl::Status status = item.work->Wait(Clock::Real().Now() + 2 * options_.timeout);
    const std::vector<double> expected = ExpectedResult(tensor, place_.rank, place_.size);
    Row& row = rows_[one.row];
    ++row.tensors;
    ++result_.tensors;
    row.elements += static_cast<int64_t>(expected.size());
    result_.elements += static_cast<int64_t>(expected.size());
    if (!status.ok()) return Fail(one.row, absl::StrCat(one.name, ": ", status.ToString()));
    const WorkResult& result = item.work->result();
    const std::byte* found = item.output.data();
    if (!tensor.own_output) found = result.owned_output.get();
    if (HasPayload(tensor.spec.kind) && result.output_bytes != item.output_bytes) {
      return Fail(one.row, absl::StrCat("tensor ", tensor.spec.name, ": ", result.output_bytes,
                                        " bytes, expected ", item.output_bytes));
    }
    const bool guarded = std::all_of(item.output.begin() + item.output_bytes, item.output.end(),
                                     [](std::byte b) { return b == kGuard; });
    if (!guarded)
      return Fail(one.row, absl::StrCat("tensor ", tensor.spec.name, ": written beyond its end"));
    Compare(one, tensor, found, expected);
  }

  void Compare(const SelftestCase& one, const SelftestTensor& tensor, const std::byte* found,
               const std::vector<double>& expected) {
    int64_t wrong = 0;
    std::string text;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double value = ReadElement(tensor.spec.dtype, found, static_cast<int64_t>(i));
      // A NaN is not within any tolerance.
      if (std::abs(value - expected[i]) <= Tolerance(tensor, place_.size, expected[i])) continue;
      if (++wrong <= kMismatchesShown)
        absl::StrAppend(&text, "; element ", i, " is ", value, ", expected ", expected[i]);
    }
    if (wrong > 0)
      Fail(one.row, absl::StrCat("tensor ", tensor.spec.name, " (", ToString(tensor.spec), "): ",
                                 wrong, " of ", expected.size(), " elements are wrong", text));
  }

  void Fail(const std::string& row, const std::string& what) {
    ++rows_[row].failures;
    ++result_.failures;
    out_ << absl::StrCat("rank ", place_.rank, ": ", what, "\n") << std::flush;
  }

  // The verdict is about all ranks: each learns how much the others have found wrong.
  void AddFailuresOfOthers() {
    int64_t failures = result_.failures;
    Submission submission;
    submission.spec.name = "selftest/failures";
    submission.spec.dtype = DataType::kInt64;
    submission.spec.op = ReduceOp::kSum;
    submission.spec.shape = {1};
    submission.timeout = options_.timeout;
    submission.input = submission.output = &failures;
    auto work = worker_.Submit(std::move(submission));
    const absl::Status status = work.ok() ? (*work)->Wait(absl::InfiniteFuture()) : work.status();
    if (!status.ok()) return Fail("verdict", absl::StrCat("the verdict: ", status.message()));
    result_.failures = failures;
  }

  void PrintEnd() {
    if (!speaks() && result_.ok()) return;
    if (options_.json) {
      out_ << absl::StrFormat(
          "{\"selftest\":\"%s\",\"rank\":%d,\"ranks\":%d,\"cases\":%d,\"tensors\":%d,"
          "\"elements\":%d,\"failures\":%d}\n",
          result_.ok() ? "passed" : "failed", place_.rank, place_.size, result_.cases,
          result_.tensors, result_.elements, result_.failures);
    } else {
      out_ << absl::StrFormat(
          "selftest %s: %d cases, %d tensors, %d elements checked, %d failures\n",
          result_.ok() ? "passed" : "FAILED", result_.cases, result_.tensors, result_.elements,
          result_.failures);
    }
    out_ << std::flush;
  }

  Worker& worker_;
  const SelftestOptions& options_;
  std::ostream& out_;
  const Placement place_;
  SelftestResult result_;
  std::map<std::string, Row> rows_;
  std::string current_row_;
  std::vector<ProcessSetId> sets_ = {ProcessSetId{}};  // by SelftestTensor::set
};

}  // namespace

SelftestResult RunSelftest(Worker& worker, const SelftestOptions& options, std::ostream& out) {
  return Selftest(worker, options, out).Run();
}

}  // namespace coordd
