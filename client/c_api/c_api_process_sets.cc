// Some of the ranks.
#include <algorithm>
#include <utility>
#include <vector>

#include "client/c_api/c_api_internal.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"

using coordd::AtBorder;

namespace coordd {
namespace {

// `name`: nullptr: all ranks make it.
absl::Status AddSet(coordd_worker_t* worker, const char* name, const int32_t* ranks, size_t count,
                    double timeout_seconds, int32_t* process_set) {
  if (worker == nullptr) return NullArgument("worker");
  if (ranks == nullptr) return NullArgument("ranks");
  if (process_set == nullptr) return NullArgument("process_set");
  *process_set = 0;
  Worker& own = *worker->worker;
  if (count > static_cast<size_t>(own.placement().size)) {
    return absl::InvalidArgumentError(absl::StrCat("a process set of ", count,
                                                   " ranks: expected at most the ",
                                                   own.placement().size, " of the job"));
  }
  COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFromSeconds(timeout_seconds));
  std::vector<int32_t> members(ranks, ranks + count);
  COORDD_ASSIGN_OR_RETURN(const ProcessSetId added,
                          name == nullptr
                              ? own.AddProcessSet(std::move(members), timeout)
                              : own.AddNamedProcessSet(name, std::move(members), timeout));
  *process_set = ToInt(added);
  return absl::OkStatus();
}

}  // namespace
}  // namespace coordd

extern "C" {

coordd_status_t coordd_process_set_add(coordd_worker_t* worker, const int32_t* ranks, size_t count,
                                       double timeout_seconds, int32_t* process_set) {
  return AtBorder(
      [&] { return coordd::AddSet(worker, nullptr, ranks, count, timeout_seconds, process_set); });
}

coordd_status_t coordd_process_set_add_members(coordd_worker_t* worker, const char* name,
                                               const int32_t* ranks, size_t count,
                                               double timeout_seconds, int32_t* process_set) {
  return AtBorder([&]() -> absl::Status {
    if (name == nullptr) return coordd::NullArgument("name");
    return coordd::AddSet(worker, name, ranks, count, timeout_seconds, process_set);
  });
}

coordd_status_t coordd_process_set_remove(coordd_worker_t* worker, int32_t process_set,
                                          double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->RemoveProcessSet(coordd::ProcessSetId{process_set}, timeout);
  });
}

coordd_status_t coordd_process_set_ranks(coordd_worker_t* worker, int32_t process_set,
                                         int32_t* ranks, size_t capacity, size_t* count) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (count == nullptr) return coordd::NullArgument("count");
    if (ranks == nullptr && capacity > 0) return coordd::NullArgument("ranks");
    *count = 0;
    COORDD_ASSIGN_OR_RETURN(const std::vector<int32_t> members,
                            worker->worker->ProcessSetRanks(coordd::ProcessSetId{process_set}));
    *count = members.size();
    if (members.size() > capacity) {
      return absl::OutOfRangeError(
          absl::StrCat("process set ", process_set, ": has ",
                       coordd::Counted(static_cast<int64_t>(members.size()), "rank"),
                       ", there is room for ", capacity));
    }
    std::copy(members.begin(), members.end(), ranks);
    return absl::OkStatus();
  });
}

coordd_status_t coordd_process_set_list(coordd_worker_t* worker, int32_t* process_sets,
                                        size_t capacity, size_t* count, int32_t* found) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (count == nullptr) return coordd::NullArgument("count");
    if (process_sets == nullptr && capacity > 0) return coordd::NullArgument("process_sets");
    if (found != nullptr) *found = ToInt(worker->worker->last_process_set_found());
    const std::vector<coordd::ProcessSetId> numbers = worker->worker->ProcessSets();
    *count = numbers.size();
    if (numbers.size() > capacity) {
      return absl::OutOfRangeError(absl::StrCat("there is room for ", capacity,
                                                " process sets, expected for ", numbers.size()));
    }
    for (size_t i = 0; i < numbers.size(); ++i) process_sets[i] = ToInt(numbers[i]);
    return absl::OkStatus();
  });
}

}  // extern "C"
