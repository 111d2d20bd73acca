#include "bench/model/message_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd::model {
namespace {

// One end of a train. Those of two ranks, which `from`, `to` and their distance say, are matched in
// their order.
struct End {
  int32_t from = 0, to = 0, distance = 0;
  int32_t order = 0;  // among all ends of its rank
  int32_t index = 0;  // of the train that is sent, or of the step that waits
  int64_t bytes = 0;
  auto key() const { return std::tie(from, to, distance, order); }
};

class Builder {
 public:
  Builder(const Symmetry& symmetry, int32_t rack_size, int64_t segment_bytes)
      : symmetry_(symmetry), rack_size_(rack_size), segment_bytes_(segment_bytes) {}

  void Add(int32_t self, const TransferSchedule& schedule) {
    table_.first_step.push_back(static_cast<int32_t>(table_.steps.size()));
    for (const AlgorithmStep& step : schedule.steps) {
      table_.steps.push_back({.first_train = static_cast<int32_t>(table_.trains.size())});
      AddSends(self, step);
      AddReceives(self, step);
      for (const LocalOp& local : step.locals)
        table_.steps.back().local_bytes += local.to.size_bytes;
    }
  }

  absl::StatusOr<MessageTable> Finish() {
    table_.first_step.push_back(static_cast<int32_t>(table_.steps.size()));
    const auto by_key = [](const End& a, const End& b) { return a.key() < b.key(); };
    std::sort(sent_.begin(), sent_.end(), by_key);
    std::sort(received_.begin(), received_.end(), by_key);
    if (sent_.size() != received_.size()) {
      return absl::InternalError(absl::StrCat(sent_.size(), " trains are sent, and ",
                                              received_.size(), " are waited for"));
    }
    for (size_t i = 0; i < sent_.size(); ++i) {
      const End &sent = sent_[i], &received = received_[i];
      if (std::tie(sent.from, sent.to, sent.distance, sent.bytes) !=
          std::tie(received.from, received.to, received.distance, received.bytes)) {
        return absl::InternalError(absl::StrCat(
            "rank ", received.to, " waits for ", received.bytes, " bytes of rank ", received.from,
            ", rank ", sent.from, " sends ", sent.bytes, " to rank ", sent.to));
      }
      table_.trains[static_cast<size_t>(sent.index)].to_step = received.index;
    }
    return std::move(table_);
  }

 private:
  int32_t SegmentsOf(int64_t bytes) const {
    return static_cast<int32_t>(
        std::max<int64_t>(1, (bytes + segment_bytes_ - 1) / segment_bytes_));
  }

  void AddSends(int32_t self, const AlgorithmStep& step) {
    for (size_t i = 0; i < step.sends.size(); ++i) {
      const int32_t to = ToInt(step.sends[i].to);
      const int64_t bytes = step.sends[i].from.size_bytes;
      if (i == 0 || step.sends[i - 1].to != step.sends[i].to) {
        const int32_t to_class = to % symmetry_.classes;
        sent_.push_back({.from = self,
                         .to = to_class,
                         .distance = symmetry_.Distance(self, to),
                         .order = static_cast<int32_t>(sent_.size()),
                         .index = static_cast<int32_t>(table_.trains.size())});
        table_.trains.push_back(
            {.from = self, .to = to_class, .leaves_rack = self / rack_size_ != to / rack_size_});
        ++table_.steps.back().trains;
      }
      sent_.back().bytes += bytes;
      table_.trains.back().bytes += bytes;
      table_.trains.back().messages += SegmentsOf(bytes);
    }
  }

  void AddReceives(int32_t self, const AlgorithmStep& step) {
    Step& at = table_.steps.back();
    for (size_t i = 0; i < step.receives.size(); ++i) {
      const ReceiveOp& receive = step.receives[i];
      const int32_t from = ToInt(receive.from);
      const int64_t bytes = receive.to.size_bytes;
      if (i == 0 || step.receives[i - 1].from != receive.from) {
        received_.push_back({.from = from % symmetry_.classes,
                             .to = self,
                             .distance = symmetry_.Distance(from, self),
                             .order = static_cast<int32_t>(received_.size()),
                             .index = static_cast<int32_t>(table_.steps.size()) - 1});
        ++at.receives;
      }
      received_.back().bytes += bytes;
      if (!receive.operand) continue;
      at.combined_bytes += bytes;
      at.last_segment_bytes = bytes - (SegmentsOf(bytes) - 1) * segment_bytes_;
    }
  }

  const Symmetry& symmetry_;
  const int32_t rack_size_;
  const int64_t segment_bytes_;
  MessageTable table_;
  std::vector<End> sent_, received_;
};

}  // namespace

absl::StatusOr<MessageTable> TableOf(const MakesSchedule& make, const Symmetry& symmetry,
                                     int32_t nodes, int32_t rack_size, int64_t segment_bytes) {
  Builder builder(symmetry, rack_size, segment_bytes);
  for (int32_t self = 0; self < std::min(symmetry.classes, nodes); ++self)
    builder.Add(self, make(Rank{self}));
  return builder.Finish();
}

}  // namespace coordd::model
