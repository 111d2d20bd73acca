// The process sets of a generation as one of its ranks knows them, and what it has asked coordd
// for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// How long what coordd was asked to withdraw waits for the answer: a round trip on a busy coordd.
// Longer, and coordd counts as gone.
inline constexpr absl::Duration kWithdrawalAnswer = absl::Seconds(5);

// PURE; part of WorkerState. Requests of all ranks have numbers, those of members alone the name of
// their set. As with tensors, a request that is sent is not given up alone: coordd
// may have granted it a moment ago. A withdrawal is a question, and coordd's answer is final.
class ProcessSetState {
 public:
  // `found`: of the generation before. REQUIRES: it is valid (common/protocol/process_set_parts.h).
  ProcessSetState(Rank self, int32_t size, const v1::ProcessSets& found = {});

  // The end of a set with a name is asked for under it, by its members alone.
  // ALREADY_EXISTS: this rank waits for an answer under the name.
  absl::Status CheckAsked(const ProcessSetAsked& asked) const;
  // The message that asks for it. REQUIRES: CheckAsked is OK.
  v1::ProcessSetRequest Ask(ProcessSetAsked asked, absl::Time now);

  // Applies what coordd says. INTERNAL: it contradicts what was said before.
  absl::Status OnChange(const v1::ProcessSetChange& change, std::vector<WorkerEffect>& out);

  // The withdrawals that are due. UNAVAILABLE: coordd did not answer one, although it was there to
  // do so (`answerable`).
  absl::StatusOr<std::vector<v1::ProcessSetRequest>> Withdraw(absl::Time now, bool answerable);
  absl::Time NextDeadline() const;

  // Ends every open request.
  void FailRequests(const absl::Status& why, std::vector<WorkerEffect>& out);

  // Whether this rank may execute batches of the set.
  bool IsMember(ProcessSetId process_set) const;
  // A set that coordd made for a send and its receive, which were submitted to set 0.
  bool IsForPair(ProcessSetId process_set) const;
  bool Contains(ProcessSetId process_set, int32_t rank) const;
  // Whether the collective's root, if it has one, takes part in it.
  bool HasRootOf(const TensorSpec& spec, ProcessSetId process_set) const {
    return !HasRoot(spec.kind) || Contains(process_set, spec.root_rank);
  }

  // For another coordd (docs/design/recovery.md). Requests are answered up to this one, and none
  // behind it is; UNIMPLEMENTED: one behind it is, which cannot be said.
  absl::StatusOr<int64_t> AnsweredRequests() const;
  // The messages that ask for what is open once more.
  std::vector<v1::ProcessSetRequest> AskAnew(absl::Time now);
  // The set as it was announced; none: it does not exist.
  std::optional<v1::ProcessSetChange> Announced(ProcessSetId process_set) const;
  // The sets whose first rank this is, as they were announced.
  std::vector<v1::ProcessSetChange> SetsOfFirstRank() const;
  bool IsFirstOf(ProcessSetId process_set) const;

  // The process sets that all ranks have asked for: those with a name end with their generation.
  std::vector<DefineProcessSet> AskedFor() const;

 private:
  struct Set {
    std::vector<int32_t> ranks;
    bool member = false;
    bool for_pair = false;
    std::string name;
  };
  struct Request {
    int64_t token = 0;
    v1::ProcessSetRequest message;
    std::string what;
    absl::Time asked_at;
    absl::Time deadline;     // withdrawn: by when coordd has to answer
    absl::Status withdrawn;  // why; OK: it is not
  };

  absl::Status Define(const v1::ProcessSetChange& change, std::vector<WorkerEffect>& out);
  std::string NameOf(const ProcessSetAsked& asked) const;
  void Answer(const v1::ProcessSetChange& change, absl::Status answer,
              std::vector<WorkerEffect>& out);
  // All that are open: those with numbers first, in order.
  std::vector<Request*> Open();

  Rank self_;
  int32_t size_;
  std::map<ProcessSetId, Set> sets_;  // without set 0
  std::set<ProcessSetId> ended_;      // no number is used twice in a generation
  int64_t last_request_ = 0;
  std::map<int64_t, Request> requests_;
  std::map<std::string, Request> named_;
};

}  // namespace coordd
