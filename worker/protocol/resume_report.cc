#include "worker/protocol/resume_report.h"

#include <utility>

#include "common/base/utf8.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

// Fills the messages of one report, each up to kMaxReportBytes.
class ReportParts {
 public:
  ReportParts() { parts_.emplace_back(); }

  // Where the next entry, of about so many bytes, goes.
  v1::ResumeReport& For(int64_t bytes) {
    bytes += kFramingBytes;
    if (bytes_ > 0 && bytes_ + bytes > kMaxReportBytes) {
      parts_.back().set_more(true);
      parts_.emplace_back();
      bytes_ = 0;
    }
    bytes_ += bytes;
    return parts_.back();
  }
  std::vector<v1::ResumeReport> Take() { return std::move(parts_); }

 private:
  static constexpr int64_t kFramingBytes = 16;
  std::vector<v1::ResumeReport> parts_;
  int64_t bytes_ = 0;
};

void AddHeard(const ReceivedLog& log, ReportParts& parts) {
  log.ForEach([&](ProcessSetId to, const v1::CoordinatorMessage& message) {
    v1::ResumeReport& part = parts.For(static_cast<int64_t>(message.ByteSizeLong()));
    *part.add_received() = message;
    part.add_received_by(ToInt(to));
  });
  for (const auto& [set, position] : log.forgotten()) {
    v1::ForgottenMessages& forgotten = *parts.For(16).add_forgotten();
    forgotten.set_process_set(ToInt(set));
    forgotten.set_position(position);
  }
}

// In parts as small as a batch, as it may have come.
void AddSchedule(const ScheduledLane& lane, ReportParts& parts) {
  const size_t batches = static_cast<size_t>(lane.batches_per_cycle());
  for (size_t batch = 0; batch < batches; ++batch) {
    v1::Schedule schedule;
    schedule.set_id(lane.id());
    schedule.set_lane(ToInt(lane.lane()));
    schedule.set_process_set(ToInt(lane.process_set()));
    schedule.set_more(batch + 1 < batches);
    v1::ScheduledBatch& specs = *schedule.add_batches();
    for (const TensorSpec* spec : lane.SpecsOf(batch)) ToProto(*spec, specs.add_tensors());
    const int64_t bytes = static_cast<int64_t>(schedule.ByteSizeLong());
    *parts.For(bytes).add_schedules() = std::move(schedule);
  }
}

}  // namespace

v1::ResumeReport OverReport(const absl::Status& why, const std::vector<v1::Departure>& departures) {
  v1::ResumeReport report;
  report.set_over(ShortenedText(why.message(), kMaxReasonBytes));
  report.mutable_departures()->Assign(departures.begin(), departures.end());
  return report;
}

std::vector<v1::ResumeReport> ResumeReportsOf(const WorkerGeneration& generation,
                                              int64_t answered_requests) {
  ReportParts parts;
  v1::ResumeReport& first = parts.For(0);
  first.set_last_process_set(generation.heard.last_process_set());
  first.set_last_schedule(generation.schedules.last_id());
  first.set_answered_requests(answered_requests);
  for (const LaneProgress& lane : generation.launched.Progress()) {
    v1::LanePosition& position = *parts.For(32).add_lanes();
    position.set_lane(ToInt(lane.lane));
    position.set_launched(lane.launched);
    position.set_completed(lane.completed);
  }
  AddHeard(generation.heard.log(), parts);
  for (v1::ProcessSetChange& change : generation.process_sets.SetsOfFirstRank()) {
    const int64_t bytes = static_cast<int64_t>(change.ByteSizeLong());
    *parts.For(bytes).add_process_sets() = std::move(change);
  }
  for (const auto& [id, set] : generation.heard.log().ended())
    *parts.For(static_cast<int64_t>(set.ByteSizeLong())).add_process_sets() = set;
  for (const auto& [id, scheduled] : generation.schedules.lanes()) {
    const ScheduledLane& lane = *scheduled.lane;
    if (lane.cut() || !generation.process_sets.IsFirstOf(lane.process_set())) continue;
    AddSchedule(lane, parts);
    if (scheduled.frozen) parts.For(10).add_frozen_schedules(lane.id());
  }
  return parts.Take();
}

}  // namespace coordd
