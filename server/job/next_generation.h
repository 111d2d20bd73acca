// A generation that is proposed, as it is stored and announced, before anybody hears of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/protocol/types.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/generation_state.h"
#include "server/generation/sets_left.h"
#include "server/job/found_sets.h"
#include "server/model/turn.h"

namespace coordd {

// PURE. Not thread-safe. It is made over turns, since the one before may have left a hundred
// thousand process sets: each of them is looked at once, told to all in one message and stored as
// it is told.
class NextGeneration {
 public:
  // Of entries as ReportMerge's: about 5 ms of a busy processor.
  static constexpr int64_t kEntriesATurn = 1 << 14;

  // `record`: without its sets. `head`: of its messages. `moved`: the new rank of each rank of the
  // one before; -1: it is gone.
  NextGeneration(v1::JobRecord record, const v1::CoordinatorMessage& head, SetsLeft left,
                 std::vector<Rank> moved, std::shared_ptr<GenerationState> state);

  Generation number() const { return Generation{record_.generation()}; }
  // Goes on, and takes of `entries`; null: of as many as a turn has. Whether it is whole. REQUIRES:
  // it was not.
  bool Continue(int64_t* entries = nullptr);
  bool whole() const { return found_ != nullptr; }
  // For nothing: another one will be proposed.
  void Bury(const Turn& turn);

  // REQUIRES of these: whole.
  const v1::JobRecord& record() const { return record_; }
  std::string TakeStored();  // the record with its sets, as bytes; once
  const std::shared_ptr<const FoundSets>& found() const { return found_; }
  const std::shared_ptr<GenerationState>& state() const { return state_; }

 private:
  std::vector<Rank> Moved(const std::vector<Rank>& ranks) const;

  const v1::JobRecord record_;
  const SetsLeft left_;
  SetsLeft::Walk walk_;  // of left_
  const std::vector<Rank> moved_;
  const std::shared_ptr<GenerationState> state_;
  FoundSetsMaker maker_;
  std::shared_ptr<const FoundSets> found_;  // null: not all are known
};

}  // namespace coordd
