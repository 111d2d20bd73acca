#include "server/generation/resume_merge.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"

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

// Assembles a ResumedGeneration step by step.
class Merge {
 public:
  Merge(absl::Span<const MemberReport> reports, const HeardMessages& said,
        const v1::ProcessSets& found)
      : reports_(reports),
        said_(said),
        found_(found),
        size_(static_cast<int32_t>(reports.size())) {}

  absl::StatusOr<ResumedGeneration> Run() {
    result_.last_process_set = found_.last_process_set();
    COORDD_RETURN_IF_ERROR(TakeNumbers());
    COORDD_RETURN_IF_ERROR(TakeSets());
    COORDD_RETURN_IF_ERROR(TakeHeard());
    COORDD_RETURN_IF_ERROR(CheckForgotten());
    COORDD_RETURN_IF_ERROR(FindMissed());
    COORDD_RETURN_IF_ERROR(FindLaunched());
    COORDD_RETURN_IF_ERROR(TakeSchedules());
    return std::move(result_);
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
  };
  struct End {                       // what was said of the end of a process set
    std::vector<int64_t> positions;  // more than one: it was answered anew
    std::set<int32_t> heard_by;      // of those who have not forgotten it
  };

  template <typename... Args>
  absl::Status Wrong(int32_t rank, const Args&... what) const {
    return absl::InternalError(absl::StrCat("the report of rank ", rank, " ", what...));
  }

  absl::Status TakeNumbers() {
    for (int32_t rank = 0; rank < size_; ++rank) {
      const MemberReport& member = reports_[static_cast<size_t>(rank)];
      const v1::ResumeReport& report = member.rest;
      const bool valid =
          member.position >= 0 && member.position < kMaxNumber && report.answered_requests() >= 0 &&
          report.answered_requests() < kMaxNumber && report.last_process_set() >= 0 &&
          report.last_process_set() <= kMaxProcessSet && report.last_schedule() >= 0 &&
          report.last_schedule() <= kMaxSchedules;
      if (!valid) return Wrong(rank, "has numbers out of bounds");
      result_.position = std::max(result_.position, member.position);
      result_.last_process_set = std::max(result_.last_process_set, report.last_process_set());
      result_.last_schedule = std::max(result_.last_schedule, report.last_schedule());
      result_.answered_requests.push_back(report.answered_requests());
    }
    return absl::OkStatus();
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
    result_.last_process_set = std::max(result_.last_process_set, change.process_set());
    return absl::OkStatus();
  }

  absl::Status TakeSets() {
    KnownSet& all = sets_[ProcessSetId{0}];
    for (int32_t rank = 0; rank < size_; ++rank) all.ranks.push_back(Rank{rank});
    const bool fresh = std::any_of(reports_.begin(), reports_.end(),
                                   [](const MemberReport& member) { return member.position == 0; });
    for (const v1::ProcessSet& before : found_.sets()) {
      if (!fresh) break;
      KnownSet& set = sets_[ProcessSetId{before.process_set()}];
      for (int32_t rank : before.ranks()) set.ranks.push_back(Rank{rank});
    }
    for (int32_t rank = 0; rank < size_; ++rank) {
      for (const v1::ProcessSetChange& change : Report(rank).process_sets()) {
        COORDD_RETURN_IF_ERROR(AddSet(rank, change));
        sets_.at(ProcessSetId{change.process_set()}).listed = true;
      }
    }
    return absl::OkStatus();
  }

  const v1::ResumeReport& Report(int32_t rank) const {
    return reports_[static_cast<size_t>(rank)].rest;
  }

  absl::Status TakeHeard() {
    for (int32_t rank = 0; rank < size_; ++rank) {
      const MemberReport& report = reports_[static_cast<size_t>(rank)];
      for (uint32_t id : report.received) {
        const v1::CoordinatorMessage& message = *said_.at(id).message;
        const int64_t position = message.position();
        if (position < 1 || position > report.position)
          return Wrong(rank, "has a message of position ", position);
        const bool ordered = message.has_plan() || message.has_schedule() || message.has_freeze() ||
                             message.has_cut() || message.has_process_set_change();
        if (!ordered) return Wrong(rank, "has a message of another kind at position ", position);
        const v1::ProcessSetChange& change = message.process_set_change();
        if (message.has_process_set_change() && change.ranks().empty())
          ends_[ProcessSetId{change.process_set()}].heard_by.insert(rank);
        const auto [first, is_new] =
            heard_.try_emplace(position, Heard{said_.at(id).message, id, said_.at(id).to, rank});
        if (!is_new && first->second.id != id) {
          return absl::InternalError(absl::StrCat("ranks ", first->second.rank, " and ", rank,
                                                  " were told different things at position ",
                                                  position));
        }
      }
    }
    for (const auto& [position, heard] : heard_) {
      const v1::ProcessSetChange& change = heard.message->process_set_change();
      if (!heard.message->has_process_set_change()) continue;
      const ProcessSetId id{change.process_set()};
      if (change.ranks().empty()) {
        ends_[id].positions.push_back(position);
      } else {
        COORDD_RETURN_IF_ERROR(AddSet(heard.rank, change));
        sets_.at(id).added_at = position;
      }
    }
    for (const auto& [id, end] : ends_) TakeEnd(id, end);
    for (const auto& [position, heard] : heard_) {
      if (!sets_.contains(heard.to))
        return Wrong(heard.rank, "has a message to process set ", ToInt(heard.to),
                     ", which nobody knows");
    }
    return absl::OkStatus();
  }

  // Whoever has heard of neither of two is told of the last one.
  void TakeEnd(ProcessSetId id, const End& end) {
    const auto set = sets_.find(id);
    const bool ended = set == sets_.end() || HasEnded(set->second, end);
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
  bool HasEnded(const KnownSet& set, const End& end) const {
    const bool is_told = std::any_of(set.ranks.begin(), set.ranks.end(), [&end](Rank member) {
      return end.heard_by.contains(member.value);
    });
    const int64_t position = reports_[static_cast<size_t>(set.ranks.front().value)].position;
    return is_told || (!set.listed && position > 0 && position >= set.added_at);
  }

  absl::Status CheckForgotten() {
    for (int32_t rank = 0; rank < size_; ++rank) {
      for (const v1::ForgottenMessages& forgotten : Report(rank).forgotten()) {
        const auto set = sets_.find(ProcessSetId{forgotten.process_set()});
        if (set == sets_.end()) continue;
        const Rank last = ByPosition(set->first).front();
        if (PositionOf(last) >= forgotten.position()) continue;
        return absl::FailedPreconditionError(absl::StrCat("rank ", ToInt(last),
                                                          " had not received what rank ", rank,
                                                          " has executed and forgotten since"));
      }
    }
    return absl::OkStatus();
  }

  int64_t PositionOf(Rank rank) const { return reports_[static_cast<size_t>(rank.value)].position; }

  // The members of a set, from the one on that has heard least: who looks for those who lack
  // something passes by nobody else.
  const std::vector<Rank>& ByPosition(ProcessSetId id) {
    const auto [found, is_new] = by_position_.try_emplace(id);
    if (!is_new) return found->second;
    found->second = sets_.at(id).ranks;
    std::stable_sort(found->second.begin(), found->second.end(),
                     [this](Rank a, Rank b) { return PositionOf(a) < PositionOf(b); });
    return found->second;
  }

  // It may have heard of a removal before others, at another position.
  bool HasAnswerOf(size_t rank, const v1::CoordinatorMessage& message) const {
    const v1::ProcessSetChange& change = message.process_set_change();
    return message.has_process_set_change() && change.ranks().empty() && change.name().empty() &&
           change.request() <= reports_[rank].rest.answered_requests();
  }

  absl::Status FindMissed() {
    result_.missed.resize(reports_.size());
    int64_t left = std::max<int64_t>(kMissedMax, kMissedOfOne * size_);
    for (const auto& [position, heard] : heard_) {
      const int64_t cost = 1 + heard.message->plan().batches_size() / kBatchesOfOne;
      for (Rank member : ByPosition(heard.to)) {
        const size_t index = static_cast<size_t>(member.value);
        if (PositionOf(member) >= position) break;
        left -= cost;
        if (left < 0) {
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
        result_.answered_requests[index] = std::max(result_.answered_requests[index],
                                                    heard.message->process_set_change().request());
      }
    }
    return absl::OkStatus();
  }

  // Each member has launched, or lacks, every batch up to the same one.
  absl::Status FindLaunched() {
    std::vector<std::map<int32_t, int64_t>> launched(reports_.size());
    for (int32_t rank = 0; rank < size_; ++rank) {
      std::map<int32_t, int64_t>& own = launched[static_cast<size_t>(rank)];
      for (const auto& [lane, sequence] : reports_[static_cast<size_t>(rank)].launched) {
        if (sequence < 0 || sequence >= kMaxNumber)
          return Wrong(rank, "has a position out of bounds");
        own[lane] = sequence;
      }
      for (const auto& message : result_.missed[static_cast<size_t>(rank)]) {
        for (const v1::FusedBatch& batch : message->plan().batches()) {
          if (++own[batch.lane()] == batch.sequence()) continue;
          return absl::InternalError(absl::StrCat(
              "rank ", rank, " would be told of batch ", batch.sequence(), " on lane ",
              batch.lane(), ", but batch ", own[batch.lane()], " is what it lacks first"));
        }
      }
    }
    for (const auto& [id, set] : sets_) {
      if (set.ended) continue;
      ResumedGeneration::Set& resumed = result_.sets.emplace_back();
      resumed.id = id;
      resumed.ranks = set.ranks;
      resumed.is_pair = set.is_pair;
      resumed.name = set.name;
      const auto of = [&, lane = ToInt(id)](Rank rank) {
        return launched[static_cast<size_t>(rank.value)][lane];
      };
      resumed.launched = of(set.ranks.front());
      for (Rank member : set.ranks) {
        if (of(member) == resumed.launched) continue;
        return absl::InternalError(
            absl::StrCat("on lane ", ToInt(id), " rank ", ToInt(set.ranks.front()), " is at batch ",
                         resumed.launched, " and rank ", ToInt(member), " at batch ", of(member),
                         " with all that was said"));
      }
    }
    return absl::OkStatus();
  }

  static void Append(const v1::Schedule& part, std::map<int64_t, v1::Schedule>& schedules) {
    v1::Schedule& whole = schedules[part.id()];
    const bool more = part.more();
    whole.mutable_batches()->MergeFrom(part.batches());
    whole.set_id(part.id());
    whole.set_lane(part.lane());
    whole.set_process_set(part.process_set());
    whole.set_more(more);
  }

  absl::Status TakeSchedules() {
    std::map<int64_t, v1::Schedule> reported, heard;
    std::set<int64_t> frozen, cut;
    for (int32_t rank = 0; rank < size_; ++rank) {
      for (const v1::Schedule& part : Report(rank).schedules()) {
        const auto set = sets_.find(ProcessSetId{part.process_set()});
        if (set == sets_.end() || set->second.ranks.front() != Rank{rank})
          return Wrong(rank, "has schedule ", part.id(),
                       " of a process set whose first rank it "
                       "is not");
        Append(part, reported);
      }
      for (int64_t id : Report(rank).frozen_schedules()) frozen.insert(id);
    }
    for (const auto& [position, entry] : heard_) {
      const v1::CoordinatorMessage& message = *entry.message;
      if (message.has_schedule()) Append(message.schedule(), heard);
      if (message.has_freeze()) frozen.insert(message.freeze().id());
      if (message.has_cut()) cut.insert(message.cut().id());
    }
    for (auto& [id, schedule] : heard) reported.try_emplace(id, std::move(schedule));
    for (auto& [id, schedule] : reported) {
      if (id < 1 || id > kMaxSchedules || schedule.lane() != kFirstScheduleLane + id - 1)
        return absl::InternalError(absl::StrCat("schedule ", id, " is on lane ", schedule.lane()));
      result_.last_schedule = std::max(result_.last_schedule, id);
      const auto set = sets_.find(ProcessSetId{schedule.process_set()});
      // One that nobody has heard to its end has not begun.
      if (cut.contains(id) || schedule.more() || set == sets_.end() || set->second.ended) continue;
      result_.schedules.push_back({std::move(schedule), frozen.contains(id)});
    }
    return absl::OkStatus();
  }

  const absl::Span<const MemberReport> reports_;
  const HeardMessages& said_;
  const v1::ProcessSets& found_;
  const int32_t size_;
  std::map<ProcessSetId, KnownSet> sets_;
  std::map<ProcessSetId, End> ends_;
  std::map<int64_t, Heard> heard_;  // by position
  std::map<ProcessSetId, std::vector<Rank>> by_position_;
  ResumedGeneration result_;
};

}  // namespace

absl::Status MemberReport::Add(const v1::ResumeReport& part, HeardMessages& heard) {
  if (part.received_size() != part.received_by_size()) {
    return absl::InvalidArgumentError(absl::StrCat("a ResumeReport with ", part.received_size(),
                                                   " messages that went to ",
                                                   part.received_by_size(), " process sets"));
  }
  for (const v1::LanePosition& lane : part.lanes())
    launched.push_back({lane.lane(), lane.launched()});
  for (int i = 0; i < part.received_size(); ++i)
    received.push_back(heard.Keep(part.received(i), ProcessSetId{part.received_by(i)}));
  v1::ResumeReport others;
  *others.mutable_forgotten() = part.forgotten();
  *others.mutable_process_sets() = part.process_sets();
  *others.mutable_schedules() = part.schedules();
  *others.mutable_frozen_schedules() = part.frozen_schedules();
  *others.mutable_departures() = part.departures();
  others.set_last_process_set(part.last_process_set());
  others.set_last_schedule(part.last_schedule());
  others.set_answered_requests(part.answered_requests());
  others.set_over(part.over());
  bytes += static_cast<int64_t>(others.SpaceUsedLong() + part.lanes().size() * sizeof(Launched) +
                                part.received().size() * sizeof(received[0]));
  rest.MergeFrom(others);
  return absl::OkStatus();
}

absl::StatusOr<ResumedGeneration> MergeReports(absl::Span<const MemberReport> reports,
                                               const HeardMessages& heard,
                                               const v1::ProcessSets& found) {
  return Merge(reports, heard, found).Run();
}

}  // namespace coordd
