#include "server/generation/resume_merge.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "server/generation/entry_walk.h"
#include "server/generation/merged_schedules.h"
#include "server/model/graveyard.h"

namespace coordd {
namespace {

// A bound of ids and positions that no job reaches, so that nothing overflows.
constexpr int64_t kMaxNumber = int64_t{1} << 60;
constexpr int32_t kMaxProcessSet = kProcessSetNumbers - 1;
// Messages times those who are told them again, in all or for each rank where that is more. Without
// a bound a few hundred kilobytes of a report, and members that have heard nothing, became
// gigabytes. In a plan of many batches so many count as a message.
constexpr int64_t kMissedMax = 1 << 18;
constexpr int64_t kMissedOfOne = 8;
constexpr int64_t kBatchesOfOne = 16;
// Of ranks in a list, and of batches, so many are an entry.
constexpr int64_t kSmallOfOne = 16;

}  // namespace

// Assembles a ResumedGeneration step by step, and remembers between turns how far it has come.
class ReportMerge::Steps {
 public:
  Steps(std::vector<const MemberReport*> reports, const HeardMessages& said,
        std::vector<const v1::ProcessSets*> found)
      : reports_(std::move(reports)),
        said_(said),
        found_(std::move(found)),
        size_(static_cast<int32_t>(reports_.size())),
        missed_left_(std::max<int64_t>(kMissedMax, kMissedOfOne * size_)) {
    if (!found_.empty()) result_.last_process_set = found_.back()->last_process_set();
    result_.missed.resize(reports_.size());
  }

  // Whether that was all.
  absl::StatusOr<bool> Continue(int64_t entries) {
    using Step = absl::StatusOr<bool> (Steps::*)();
    static constexpr std::array<Step, 15> kSteps = {
        &Steps::TakeNumbers,    &Steps::TakeFoundSets,
        &Steps::TakeListedSets, &Steps::TakeHeard,
        &Steps::TakeChanges,    &Steps::TakeEnds,
        &Steps::CheckSets,      &Steps::CheckForgotten,
        &Steps::FindMissed,     &Steps::FindLaunched,
        &Steps::EndSets,        &Steps::TakeReportedSchedules,
        &Steps::TakeFrozen,     &Steps::TakeHeardSchedules,
        &Steps::EndSchedules};
    walk_.left = entries;
    for (; step_ < kSteps.size(); ++step_) {
      COORDD_ASSIGN_OR_RETURN(const bool done, (this->*kSteps[step_])());
      if (!done) return false;
      walk_ = EntryWalk{.left = walk_.left};
    }
    return true;
  }
  ResumedGeneration Take() { return std::move(result_); }

  int64_t Free(int64_t most) {
    int64_t left = most - FreeFirst(heard_, most);
    left -= FreeFirst(sets_, left);
    left -= FreeFirst(by_position_, left);
    left -= FreeFirst(ends_, left);
    left -= schedules_.Free(left);
    for (; left > 0 && !result_.sets.empty(); --left) result_.sets.pop_back();
    return most - (left - FreeFirst(own_, left));
  }

 private:
  struct Heard {
    std::shared_ptr<const v1::CoordinatorMessage> message;
    uint32_t id = 0;  // of said_
    ProcessSetId to;
    int32_t rank = 0;  // who has reported it first
  };
  struct KnownSet {
    std::vector<Rank> ranks;
    bool is_pair = false;
    std::string name;
    bool ended = false;
    bool listed = false;   // by its first rank: it goes on, or what was said to it is not forgotten
    int64_t added_at = 0;  // the position, if the addition is not forgotten
    int64_t launched = 0;  // what its first ranks, so many, have launched on its lane
    size_t launched_by = 0;
  };
  struct End {                       // what was said of the end of a process set
    std::vector<int64_t> positions;  // more than one: it was answered anew
    std::set<int32_t> heard_by;      // of those who have not forgotten it
  };

  template <typename Count, typename Look>
  absl::StatusOr<bool> ForEach(Count count, Look look) {
    return walk_.ForEach(size_, count, look);
  }

  template <typename... Args>
  absl::Status Wrong(int32_t rank, const Args&... what) const {
    return absl::InternalError(absl::StrCat("the report of rank ", rank, " ", what...));
  }

  absl::StatusOr<bool> TakeNumbers() {
    return ForEach(
        [](int32_t) { return 1; },
        [this](int32_t rank, int) -> absl::Status {
          const MemberReport& member = Member(rank);
          const v1::ResumeReport& report = member.rest;
          const bool valid =
              member.position >= 0 && member.position < kMaxNumber &&
              report.answered_requests() >= 0 && report.answered_requests() < kMaxNumber &&
              report.last_process_set() >= 0 && report.last_process_set() <= kMaxProcessSet &&
              report.last_schedule() >= 0 && report.last_schedule() <= kMaxSchedules;
          if (!valid) return Wrong(rank, "has numbers out of bounds");
          fresh_ = fresh_ || member.position == 0;
          result_.position = std::max(result_.position, member.position);
          result_.last_process_set = std::max(result_.last_process_set, report.last_process_set());
          result_.last_schedule = std::max(result_.last_schedule, report.last_schedule());
          result_.answered_requests.push_back(report.answered_requests());
          return absl::OkStatus();
        });
  }

  absl::Status AddSet(int32_t rank, const v1::ProcessSetChange& change) {
    KnownSet set{.ranks = {},
                 .is_pair = change.request() == 0 && change.name().empty(),
                 .name = change.name()};
    for (int32_t member : change.ranks()) {
      const bool increases = set.ranks.empty() || set.ranks.back().value < member;
      if (!increases || member < 0 || member >= size_)
        return Wrong(rank, "has process set ", change.process_set(), " with ranks out of order");
      set.ranks.push_back(Rank{member});
    }
    if (set.ranks.empty() || change.process_set() < 1 || change.process_set() > kMaxProcessSet)
      return Wrong(rank, "has process set ", change.process_set(), " of ", set.ranks.size(),
                   " ranks");
    const auto [known, is_new] = sets_.try_emplace(ProcessSetId{change.process_set()}, set);
    if (!is_new && known->second.ranks != set.ranks)
      return Wrong(rank, "has other ranks of process set ", change.process_set(), " than another");
    walk_.left -= change.ranks_size() / kSmallOfOne;
    result_.last_process_set = std::max(result_.last_process_set, change.process_set());
    return absl::OkStatus();
  }

  absl::StatusOr<bool> TakeFoundSets() {
    std::vector<Rank>& all = sets_[ProcessSetId{0}].ranks;
    for (auto rank = static_cast<int32_t>(all.size()); rank < size_; ++rank)
      all.push_back(Rank{rank});
    return walk_.ForEach(
        fresh_ ? static_cast<int32_t>(found_.size()) : 0,
        [this](int32_t part) { return found_[static_cast<size_t>(part)]->sets_size(); },
        [this](int32_t part, int i) {
          const v1::ProcessSet& before = found_[static_cast<size_t>(part)]->sets(i);
          KnownSet& set = sets_[ProcessSetId{before.process_set()}];
          for (int32_t rank : before.ranks()) set.ranks.push_back(Rank{rank});
          walk_.left -= before.ranks_size() / kSmallOfOne;
          return absl::OkStatus();
        });
  }

  absl::StatusOr<bool> TakeListedSets() {
    return ForEach([this](int32_t rank) { return Report(rank).process_sets_size(); },
                   [this](int32_t rank, int i) -> absl::Status {
                     const v1::ProcessSetChange& change = Report(rank).process_sets(i);
                     COORDD_RETURN_IF_ERROR(AddSet(rank, change));
                     sets_.at(ProcessSetId{change.process_set()}).listed = true;
                     return absl::OkStatus();
                   });
  }

  const MemberReport& Member(int32_t rank) const { return *reports_[static_cast<size_t>(rank)]; }
  const v1::ResumeReport& Report(int32_t rank) const { return Member(rank).rest; }

  absl::StatusOr<bool> TakeHeard() {
    return ForEach(
        [this](int32_t rank) { return static_cast<int64_t>(Member(rank).received.size()); },
        [this](int32_t rank, int i) { return TakeReceived(rank, i); });
  }

  absl::Status TakeReceived(int32_t rank, int i) {
    const uint32_t id = Member(rank).received[static_cast<size_t>(i)];
    const HeardMessages::Entry& said = said_.at(id);
    const v1::CoordinatorMessage& message = *said.message;
    const int64_t position = message.position();
    if (position < 1 || position > Member(rank).position)
      return Wrong(rank, "has a message of position ", position);
    const bool ordered = message.has_plan() || message.has_schedule() || message.has_freeze() ||
                         message.has_cut() || message.has_process_set_change();
    if (!ordered) return Wrong(rank, "has a message of another kind at position ", position);
    const v1::ProcessSetChange& change = message.process_set_change();
    if (message.has_process_set_change() && change.ranks().empty())
      ends_[ProcessSetId{change.process_set()}].heard_by.insert(rank);
    const auto [first, is_new] =
        heard_.try_emplace(position, Heard{said.message, id, said.to, rank});
    if (is_new || first->second.id == id) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("ranks ", first->second.rank, " and ", rank,
                                            " were told different things at position ", position));
  }

  absl::StatusOr<bool> TakeChanges() {
    return walk_.ForEachOf(heard_, [this](int64_t position, const Heard& heard) -> absl::Status {
      const v1::ProcessSetChange& change = heard.message->process_set_change();
      if (!heard.message->has_process_set_change()) return absl::OkStatus();
      const ProcessSetId id{change.process_set()};
      if (change.ranks().empty()) {
        ends_[id].positions.push_back(position);
      } else {
        COORDD_RETURN_IF_ERROR(AddSet(heard.rank, change));
        sets_.at(id).added_at = position;
      }
      return absl::OkStatus();
    });
  }

  absl::StatusOr<bool> TakeEnds() {
    return walk_.ForEachOf(ends_, [this](ProcessSetId id, const End& end) {
      TakeEnd(id, end);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<bool> CheckSets() {
    return walk_.ForEachOf(heard_, [this](int64_t, const Heard& heard) {
      return sets_.contains(heard.to) ? absl::OkStatus()
                                      : Wrong(heard.rank, "has a message to process set ",
                                              ToInt(heard.to), ", which nobody knows");
    });
  }

  // Whoever has heard of neither of two is told of the last one.
  void TakeEnd(ProcessSetId id, const End& end) {
    const auto set = sets_.find(id);
    const bool ended = set == sets_.end() || HasEnded(set->second, end);
    walk_.left -= static_cast<int64_t>(end.positions.size());
    if (set != sets_.end()) set->second.ended = ended;
    for (int64_t position : end.positions) {
      const auto said = heard_.find(position);
      if (!ended)
        result_.removals.push_back(
            {said->second.message->process_set_change().request(), id, position});
      if (!ended || position != end.positions.back()) heard_.erase(said);
    }
  }

  // For its members: some may be told, or all have been and have forgotten it. Their positions do
  // not say it, since they go on if only others were told (Removal).
  bool HasEnded(const KnownSet& set, const End& end) {
    walk_.left -= static_cast<int64_t>(set.ranks.size());
    const bool is_told = std::any_of(set.ranks.begin(), set.ranks.end(), [&end](Rank member) {
      return end.heard_by.contains(member.value);
    });
    const int64_t position = PositionOf(set.ranks.front());
    return is_told || (!set.listed && position > 0 && position >= set.added_at);
  }

  absl::StatusOr<bool> CheckForgotten() {
    return ForEach([this](int32_t rank) { return Report(rank).forgotten_size(); },
                   [this](int32_t rank, int i) -> absl::Status {
                     const v1::ForgottenMessages& forgotten = Report(rank).forgotten(i);
                     const auto set = sets_.find(ProcessSetId{forgotten.process_set()});
                     if (set == sets_.end()) return absl::OkStatus();
                     const Rank last = ByPosition(set->first).front();
                     if (PositionOf(last) >= forgotten.position()) return absl::OkStatus();
                     return absl::FailedPreconditionError(
                         absl::StrCat("rank ", ToInt(last), " had not received what rank ", rank,
                                      " has executed and forgotten since"));
                   });
  }

  int64_t PositionOf(Rank rank) const { return Member(rank.value).position; }

  // The members of a set, from the one on that has heard least: who looks for those who lack
  // something passes by nobody else.
  const std::vector<Rank>& ByPosition(ProcessSetId id) {
    const auto [found, is_new] = by_position_.try_emplace(id);
    if (!is_new) return found->second;
    found->second = sets_.at(id).ranks;
    walk_.left -= static_cast<int64_t>(found->second.size());
    std::stable_sort(found->second.begin(), found->second.end(),
                     [this](Rank a, Rank b) { return PositionOf(a) < PositionOf(b); });
    return found->second;
  }

  // It may have heard of a removal before others, at another position.
  bool HasAnswerOf(size_t rank, const v1::CoordinatorMessage& message) const {
    const v1::ProcessSetChange& change = message.process_set_change();
    return message.has_process_set_change() && change.ranks().empty() && change.name().empty() &&
           change.request() <= reports_[rank]->rest.answered_requests();
  }

  absl::StatusOr<bool> FindMissed() {
    return walk_.ForEachOf(heard_, [this](int64_t position, const Heard& heard) {
      return TellAgain(position, heard);
    });
  }

  absl::Status TellAgain(int64_t position, const Heard& heard) {
    const int64_t cost = 1 + heard.message->plan().batches_size() / kBatchesOfOne;
    for (Rank member : ByPosition(heard.to)) {
      const size_t index = static_cast<size_t>(member.value);
      if (PositionOf(member) >= position) break;
      missed_left_ -= cost;
      --walk_.left;
      if (missed_left_ < 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("what ranks have not received that others have is more than coordd "
                         "tells again: rank ",
                         ToInt(member), " has acted on messages up to ", PositionOf(member),
                         ", rank ", heard.rank, " on the one of ", position));
      }
      if (HasAnswerOf(index, *heard.message)) continue;
      result_.missed[index].push_back(heard.message);
      if (!heard.message->has_process_set_change()) continue;
      // All had asked, so it answers this one and all before it.
      result_.answered_requests[index] =
          std::max(result_.answered_requests[index], heard.message->process_set_change().request());
    }
    return absl::OkStatus();
  }

  // Each member has launched, or lacks, every batch up to the same one. One rank at a time: all of
  // their lanes in maps would be several times what the reports are.
  absl::StatusOr<bool> FindLaunched() {
    for (; walk_.rank < size_; ++walk_.rank, walk_.entry = 0) {
      if (--walk_.left < 0) return false;
      const auto& launched = Member(walk_.rank).launched;
      const auto all = static_cast<int64_t>(launched.size());
      for (; walk_.entry < all; ++walk_.entry) {
        if (--walk_.left < 0) return false;
        const auto& [lane, sequence] = launched[static_cast<size_t>(walk_.entry)];
        if (sequence < 0 || sequence >= kMaxNumber)
          return Wrong(walk_.rank, "has a position out of bounds");
        own_[lane] = sequence;
      }
      if (walk_.entry++ == all) COORDD_RETURN_IF_ERROR(AddMissed(walk_.rank));
      for (; !own_.empty(); own_.erase(own_.begin())) {
        if (--walk_.left < 0) return false;
        COORDD_RETURN_IF_ERROR(NoteLaunched(Rank{walk_.rank}, *own_.begin()));
      }
    }
    return true;
  }

  absl::Status AddMissed(int32_t rank) {
    for (const auto& message : result_.missed[static_cast<size_t>(rank)]) {
      walk_.left -= 1 + message->plan().batches_size();
      for (const v1::FusedBatch& batch : message->plan().batches()) {
        if (++own_[batch.lane()] == batch.sequence()) continue;
        return absl::InternalError(absl::StrCat(
            "rank ", rank, " would be told of batch ", batch.sequence(), " on lane ", batch.lane(),
            ", but batch ", own_[batch.lane()], " is what it lacks first"));
      }
    }
    return absl::OkStatus();
  }

  // Its ranks come in their order: whoever is passed by has launched nothing.
  absl::Status NoteLaunched(Rank rank, const std::pair<const int32_t, int64_t>& entry) {
    const auto& [lane, sequence] = entry;
    const auto found = sets_.find(ProcessSetId{lane});
    if (sequence == 0 || found == sets_.end() || found->second.ended) return absl::OkStatus();
    KnownSet& set = found->second;
    if (!std::binary_search(set.ranks.begin(), set.ranks.end(), rank)) return absl::OkStatus();
    const Rank expected = set.ranks[set.launched_by];
    if (rank != expected) return Differs(found->first, expected, 0, rank, sequence);
    if (set.launched_by++ == 0) set.launched = sequence;
    if (set.launched == sequence) return absl::OkStatus();
    return Differs(found->first, set.ranks.front(), set.launched, rank, sequence);
  }

  static absl::Status Differs(ProcessSetId id, Rank one, int64_t its, Rank other, int64_t others) {
    return absl::InternalError(absl::StrCat("on lane ", ToInt(id), " rank ", ToInt(one),
                                            " is at batch ", its, " and rank ", ToInt(other),
                                            " at batch ", others, " with all that was said"));
  }

  absl::StatusOr<bool> EndSets() {
    return walk_.ForEachOf(sets_, [this](ProcessSetId id, const KnownSet& set) -> absl::Status {
      if (set.ended) return absl::OkStatus();
      if (set.launched_by > 0 && set.launched_by < set.ranks.size())
        return Differs(id, set.ranks.front(), set.launched, set.ranks[set.launched_by], 0);
      ResumedGeneration::Set& resumed = result_.sets.emplace_back();
      resumed.id = id;
      resumed.ranks = set.ranks;
      resumed.is_pair = set.is_pair;
      resumed.name = set.name;
      resumed.launched = set.launched;
      walk_.left -= static_cast<int64_t>(set.ranks.size()) / kSmallOfOne;
      return absl::OkStatus();
    });
  }

  absl::StatusOr<bool> TakeReportedSchedules() {
    return ForEach([this](int32_t rank) { return Report(rank).schedules_size(); },
                   [this](int32_t rank, int i) {
                     const v1::Schedule& part = Report(rank).schedules(i);
                     const auto set = sets_.find(ProcessSetId{part.process_set()});
                     if (set == sets_.end() || set->second.ranks.front() != Rank{rank})
                       return Wrong(rank, "has schedule ", part.id(),
                                    " of a process set whose first rank it is not");
                     walk_.left -= part.batches_size();
                     return schedules_.Report(part);
                   });
  }

  absl::StatusOr<bool> TakeFrozen() {
    return ForEach([this](int32_t rank) { return Report(rank).frozen_schedules_size(); },
                   [this](int32_t rank, int i) {
                     schedules_.Freeze(Report(rank).frozen_schedules(i));
                     return absl::OkStatus();
                   });
  }

  absl::StatusOr<bool> TakeHeardSchedules() {
    return walk_.ForEachOf(heard_, [this](int64_t, const Heard& entry) {
      walk_.left -= entry.message->schedule().batches_size();
      return schedules_.Hear(*entry.message);
    });
  }

  absl::StatusOr<bool> EndSchedules() {
    return walk_.ForEachOf(
        schedules_.Whole(), [this](int64_t id, v1::Schedule& schedule) -> absl::Status {
          if (schedule.lane() != kFirstScheduleLane + id - 1)
            return absl::InternalError(
                absl::StrCat("schedule ", id, " is on lane ", schedule.lane()));
          result_.last_schedule = std::max(result_.last_schedule, id);
          const auto set = sets_.find(ProcessSetId{schedule.process_set()});
          const bool is_over =
              set == sets_.end() || set->second.ended || !schedules_.IsInForce(schedule);
          if (!is_over) result_.schedules.push_back({std::move(schedule), schedules_.IsFrozen(id)});
          return absl::OkStatus();
        });
  }

  const std::vector<const MemberReport*> reports_;  // by rank
  const HeardMessages& said_;
  const std::vector<const v1::ProcessSets*> found_;
  const int32_t size_;
  std::map<ProcessSetId, KnownSet> sets_;
  std::map<ProcessSetId, End> ends_;
  std::map<int64_t, Heard> heard_;  // by position
  std::map<ProcessSetId, std::vector<Rank>> by_position_;
  ResumedGeneration result_;
  int64_t missed_left_;
  size_t step_ = 0;
  EntryWalk walk_;                  // of that step
  bool fresh_ = false;              // a rank has heard of nothing
  std::map<int32_t, int64_t> own_;  // what the rank of walk_ has launched, by lane
  MergedSchedules schedules_;
};

ReportMerge::ReportMerge(std::vector<const MemberReport*> reports, const HeardMessages& heard,
                         std::vector<const v1::ProcessSets*> found)
    : steps_(std::make_unique<Steps>(std::move(reports), heard, std::move(found))) {}

ReportMerge::~ReportMerge() = default;

std::optional<absl::StatusOr<ResumedGeneration>> ReportMerge::Continue(int64_t entries) {
  const absl::StatusOr<bool> done = steps_->Continue(entries);
  if (!done.ok()) return done.status();
  if (!*done) return std::nullopt;
  return steps_->Take();
}

int64_t ReportMerge::Free(int64_t most) { return steps_->Free(most); }

absl::StatusOr<ResumedGeneration> MergeReports(absl::Span<const MemberReport> reports,
                                               const HeardMessages& heard,
                                               const v1::ProcessSets& found) {
  std::vector<const MemberReport*> all;
  for (const MemberReport& report : reports) all.push_back(&report);
  auto merged =
      ReportMerge(std::move(all), heard, {&found}).Continue(std::numeric_limits<int64_t>::max());
  COORDD_CHECK(merged.has_value());
  return *std::move(merged);
}

}  // namespace coordd
