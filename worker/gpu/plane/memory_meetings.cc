#include "worker/gpu/plane/memory_meetings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/gpu/nccl/store_end.h"

namespace coordd {
namespace {

constexpr absl::Duration kLookLimit = absl::Seconds(2);
// As long as a coordd is away that is started again.
constexpr absl::Duration kTellLimit = absl::Seconds(30);
constexpr absl::string_view kGivenUp = " given up";
constexpr size_t kNamedRanks = 16;

std::string PrefixOf(ProcessSetId process_set) {
  return absl::StrCat("memory/", ToInt(process_set), "/");
}
std::string ProgressKey(ProcessSetId process_set, int32_t rank) {
  return absl::StrCat(PrefixOf(process_set), "rank/", rank);
}
std::string GivenUpKey(ProcessSetId process_set, int64_t number) {
  return absl::StrCat(PrefixOf(process_set), "given-up/", number);
}

// What a rank has left of its progress.
struct Progress {
  int64_t value = 0;
  bool is_waiting = true;

  explicit Progress(absl::string_view text) {
    is_waiting = !absl::ConsumeSuffix(&text, kGivenUp);
    if (!absl::SimpleAtoi(text, &value)) value = 0;
  }
  // Of a rank that has come to that meeting.
  bool HasGivenUp(int64_t number) const {
    return !is_waiting && (value == 2 * number + 1 || value == 2 * number + 2);
  }
};

// "rank 2 has", "ranks 1, 2 have", "ranks 0, 1, ... and 3 more have".
std::string Names(const std::vector<int32_t>& ranks) {
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0], " has");
  const size_t named = std::min(ranks.size(), kNamedRanks);
  return absl::StrCat(
      "ranks ", absl::StrJoin(ranks.begin(), ranks.begin() + static_cast<int64_t>(named), ", "),
      ranks.size() > named ? absl::StrCat(" and ", ranks.size() - named, " more") : "", " have");
}

}  // namespace

void MemoryMeetings::Note(ProcessSetId process_set, const Meeting& meeting) {
  MutexLock lock(&mu_);
  meetings_[process_set] = meeting;
}

absl::Status MemoryMeetings::SetProgress(ProcessSetId process_set, int64_t progress,
                                         bool is_waiting, absl::Time deadline) {
  return EndOr(store_.Set(ProgressKey(process_set, rank_),
                          absl::StrCat(progress, is_waiting ? "" : kGivenUp),
                          std::max(deadline, clock_.Now() + kLookLimit)));
}

absl::StatusOr<bool> MemoryMeetings::SomebodyGaveUp(ProcessSetId process_set, int64_t number,
                                                    absl::Time deadline) {
  const auto found = store_.Look({GivenUpKey(process_set, number)}, /*values=*/false, deadline);
  if (!found.ok()) return EndOr(found.status());
  return found->front().has_value();
}

absl::Status MemoryMeetings::TellGivenUp(ProcessSetId process_set, int64_t number,
                                         absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(EndOr(store_.Set(GivenUpKey(process_set, number), "", deadline)));
  return SetProgress(process_set, 2 * number + 2, /*is_waiting=*/false, deadline);
}

void MemoryMeetings::GiveUp(ProcessSetId process_set, int64_t number) {
  const absl::Status told = TellGivenUp(process_set, number, clock_.Now() + kTellLimit);
  if (told.ok()) return;
  COORDD_LOG(kDebug, "a registration that was given up: ", told.message());
  MutexLock lock(&mu_);
  untold_.emplace(process_set, number);
}

absl::Status MemoryMeetings::TellUntold(absl::Time deadline) {
  std::set<std::pair<ProcessSetId, int64_t>> untold;
  {
    MutexLock lock(&mu_);
    untold = untold_;
  }
  for (const auto& [process_set, number] : untold) {
    COORDD_RETURN_IF_ERROR(TellGivenUp(process_set, number, deadline));
    MutexLock lock(&mu_);
    untold_.erase({process_set, number});
  }
  return absl::OkStatus();
}

absl::StatusOr<MemoryMeetings::Meeting> MemoryMeetings::Current(ProcessSetId process_set,
                                                                absl::Time deadline) {
  Meeting meeting;
  {
    MutexLock lock(&mu_);
    meeting = meetings_[process_set];
  }
  if (meeting.work == nullptr || !meeting.work->done()) return meeting;
  // All have come since this rank has waited for them. Who came last is going on, or has given up.
  const bool failed = !meeting.work->Wait(deadline).ok();
  meeting.work = failed ? nullptr : meeting.work;
  if (failed) return meeting;  // on all ranks that had come: under the same number again
  COORDD_ASSIGN_OR_RETURN(const bool given_up,
                          SomebodyGaveUp(process_set, meeting.number, deadline));
  if (given_up) meeting = {meeting.number + 1, nullptr};
  return meeting;
}

absl::StatusOr<int64_t> MemoryMeetings::Meet(ProcessSetId process_set,
                                             absl::Span<const int32_t> ranks, absl::Time deadline,
                                             Submit submit) {
  COORDD_RETURN_IF_ERROR(TellUntold(deadline));
  COORDD_ASSIGN_OR_RETURN(Meeting meeting, Current(process_set, deadline));
  const int64_t number = meeting.number;
  if (ranks.size() > 1) {
    if (meeting.work == nullptr) {
      COORDD_ASSIGN_OR_RETURN(
          meeting.work, submit(absl::StrCat("coordd.meeting/", ToInt(process_set), "/", number)));
      Note(process_set, meeting);
    }
    COORDD_RETURN_IF_ERROR(SetProgress(process_set, 2 * number + 1, /*is_waiting=*/true, deadline));
    meeting.work->Wait(deadline).IgnoreError();
    if (!meeting.work->done()) {
      absl::Status who = NotAll(process_set, ranks, number, 2 * number + 1);
      // Others that wait longer say that this one has been there.
      SetProgress(process_set, 2 * number + 1, /*is_waiting=*/false, deadline).IgnoreError();
      return who;
    }
    COORDD_RETURN_IF_ERROR(meeting.work->Wait(deadline));  // its status
    COORDD_RETURN_IF_ERROR(SetProgress(process_set, 2 * number + 2, /*is_waiting=*/true, deadline));
  }
  Note(process_set, {number + 1, nullptr});
  return number;
}

absl::Status MemoryMeetings::NotAll(ProcessSetId process_set, absl::Span<const int32_t> ranks,
                                    int64_t number, int64_t progress) {
  std::vector<std::string> keys;
  std::vector<int32_t> missing, given_up;
  const absl::Time limit = clock_.Now() + kLookLimit;
  for (size_t at = 0; at < ranks.size(); ++at) {
    keys.push_back(ProgressKey(process_set, ranks[at]));
    if (keys.size() < Store::kMaxLookKeys && at + 1 < ranks.size()) continue;
    const auto found = store_.Look(keys, /*values=*/true, limit);
    if (!found.ok()) {
      return absl::DeadlineExceededError(
          absl::StrCat("not all ranks of process set ", ToInt(process_set),
                       " have come to this registration of memory (number ", number + 1,
                       " there), or the device is not through with what was launched before"));
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const int32_t rank = ranks[at + 1 - keys.size() + i];
      const Progress has((*found)[i].value_or(""));
      if (rank != rank_ && has.HasGivenUp(number)) {
        given_up.push_back(rank);
      } else if (has.value < progress) {
        missing.push_back(rank);
      }
    }
    keys.clear();
  }
  const std::string which = absl::StrCat("this registration of memory (number ", number + 1,
                                         " in process set ", ToInt(process_set), ")");
  if (missing.empty() && given_up.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat("all ranks have come to ", which,
                     ", and the device is not through with what was launched before"));
  }
  const std::string who =
      missing.empty()
          ? absl::StrCat(Names(given_up), " been at ", which, " and given up")
          : absl::StrCat(Names(missing), " not come to ", which,
                         given_up.empty()
                             ? ""
                             : absl::StrCat(", ", Names(given_up), " been there and given up"));
  return absl::DeadlineExceededError(absl::StrCat(
      who,
      ": all ranks of the set have to call it; the next one that all of them call is in step "
      "again"));
}

}  // namespace coordd
