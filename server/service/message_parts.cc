#include "server/service/message_parts.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

namespace coordd {
namespace {

// What a word costs, and a tensor of it, however short they are: each may have an answer. A report
// of what is ready is counted, and nothing else is quicker.
constexpr size_t kReportBytes = 64;
constexpr size_t kWordBytes = 256;
// A Join is looked at in all its parts, and others hear of it.
constexpr size_t kJoinBytes = 4 << 10;
constexpr size_t kTensorBytes = 32;

// Of memory a byte on the wire takes so many when it is read, where tensors have long names.
constexpr size_t kUsualSpace = 4;

size_t CostOf(const v1::WorkerMessage& message, const Heard& heard) {
  const auto tensors = static_cast<size_t>(message.tensors_ready().tensors_size());
  const size_t word = WakeRule::IsReport(message) ? kReportBytes
                      : message.has_join()        ? kJoinBytes
                                                  : kWordBytes;
  return word + std::max({heard.bytes, tensors * kTensorBytes, heard.space / kUsualSpace});
}

// Puts what is told into parts, one after the other.
class Parts {
 public:
  Parts(SessionId stream, size_t bytes) : stream_(stream), bytes_(bytes) {}

  void Add(Heard one) {
    if (auto* const shared = std::get_if<SharedMessage>(&one.in)) {
      AddShared(*shared, CostOf(*shared->message, one));
    } else if (const auto* said = std::get_if<SessionMessage>(&one.in)) {
      const size_t cost = CostOf(said->message, one);
      MakeRoom(cost);
      Count(said->message, 1, cost);
      told_.push_back(std::move(one.in));
    } else {
      MakeRoom(kWordBytes);
      cost_ += kWordBytes;
      report_.is_nothing_else = false;
      told_.push_back(std::move(one.in));
    }
  }

  std::vector<MessagePart> Take() {
    if (!told_.empty() || parts_.empty()) EndPart();
    return std::move(parts_);
  }

 private:
  // As many members in a part as there is room for.
  void AddShared(SharedMessage& shared, size_t cost) {
    std::vector<SessionRange> from;
    const auto flush = [&] {
      if (from.empty()) return;
      told_.push_back(SharedMessage{std::exchange(from, {}), shared.message});
    };
    for (SessionRange range : shared.from) {
      while (range.count > 0) {
        if (cost_ > 0 && cost_ + cost > Inbox::kTurnCost) {
          flush();
          EndPart();
        }
        const size_t left = cost_ < Inbox::kTurnCost ? (Inbox::kTurnCost - cost_) / cost : 0;
        const auto count =
            static_cast<int32_t>(std::clamp<size_t>(left, 1, static_cast<size_t>(range.count)));
        from.push_back({range.first, count});
        Count(*shared.message, count, cost * static_cast<size_t>(count));
        range = {SessionId{ToInt(range.first) + count}, range.count - count};
      }
    }
    flush();
  }

  void MakeRoom(size_t cost) {
    if (cost_ > 0 && cost_ + cost > Inbox::kTurnCost) EndPart();
  }

  void Count(const v1::WorkerMessage& message, int32_t members, size_t cost) {
    cost_ += cost;
    if (message.has_tensors_ready()) report_.words += members;
    report_.is_nothing_else = report_.is_nothing_else && WakeRule::IsReport(message);
  }

  void EndPart() {
    auto in = std::make_shared<std::vector<Inbound>>(std::exchange(told_, {}));
    report_.stream = stream_;
    parts_.push_back({.in = std::move(in),
                      .report = std::exchange(report_, kNoReport),
                      .size = {.bytes = std::min(bytes_, cost_), .told_bytes = cost_}});
    cost_ = 0;
  }

  static constexpr WakeRule::Report kNoReport{.stream = {}, .words = 0, .is_nothing_else = true};

  const SessionId stream_;
  const size_t bytes_;
  std::vector<MessagePart> parts_;
  // Of the part that is begun.
  std::vector<Inbound> told_;
  WakeRule::Report report_ = kNoReport;
  size_t cost_ = 0;
};

}  // namespace

std::vector<MessagePart> PartsOf(SessionId stream, std::vector<Heard> in, size_t bytes) {
  Parts parts(stream, bytes);
  for (Heard& one : in) parts.Add(std::move(one));
  return parts.Take();
}

}  // namespace coordd
