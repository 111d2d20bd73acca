#include "bench/model/simulation.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <vector>

namespace coordd::model {
namespace {

// Of a rank that works on one piece.
struct StepState {
  int32_t missing = 0;  // trains
  double first_us = 0;  // when the first message of the first train is there
  double last_us = 0;   // and the last one of the last
};

enum class What : uint8_t { kAtUplink, kAtDownlink, kAtPort, kArrived, kStepDone };

struct Event {
  double at_us;
  int64_t order;
  What what;
  int32_t piece;
  int32_t index;   // of the train, or of the rank
  double last_us;  // when the train's last byte would be there
  bool operator<(const Event& other) const {
    return std::tie(other.at_us, other.order) < std::tie(at_us, order);
  }
};

// A line that several send over, each no faster than its bytes come: what is left of the line,
// others have meanwhile.
struct Line {
  double free_us = 0;
  // -> when the first and the last byte have passed
  std::pair<double, double> Pass(double first_us, double last_us, double needs_us) {
    const double begin = std::max(first_us, free_us);
    free_us = begin + needs_us;
    return {begin, std::max(last_us, free_us)};
  }
};

class Simulation {
 public:
  Simulation(const MessageTable& table, const Network& network, int32_t nodes, Pieces pieces)
      : table_(table),
        network_(network),
        pieces_(pieces),
        uplink_us_per_byte_(network.uplink_us_per_byte(nodes)),
        rack_size_(nodes / network.racks),
        out_(static_cast<size_t>(table.followed())),
        in_(out_),
        up_((out_.size() + static_cast<size_t>(rack_size_) - 1) / static_cast<size_t>(rack_size_)),
        down_(up_),
        ranks_(out_.size()) {
    std::vector<StepState> steps;
    for (const Step& step : table.steps) steps.push_back({step.receives, 1e300, 0});
    states_.assign(static_cast<size_t>(pieces.number), steps);
    step_of_.assign(static_cast<size_t>(pieces.number),
                    std::vector<int32_t>(out_.size(), kNotBegun));
  }

  double Run() {
    for (int32_t rank = 0; rank < table_.followed(); ++rank) BeginPieces(rank, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      end_us_ = std::max(end_us_, event.at_us);
      Take(event);
    }
    return end_us_;
  }

 private:
  static constexpr int32_t kNotBegun = -1, kEnded = -2;
  struct RankState {
    int64_t next_piece = 0;
    double combines_until_us = 0;
  };

  void Push(double at_us, What what, int32_t piece, int32_t index, double last_us = 0) {
    events_.push({at_us, ++order_, what, piece, index, last_us});
  }
  int32_t& StepOf(int64_t piece, int32_t rank) {
    return step_of_[static_cast<size_t>(piece)][static_cast<size_t>(rank)];
  }

  void BeginPieces(int32_t rank, double now_us) {
    int64_t& next = ranks_[static_cast<size_t>(rank)].next_piece;
    while (next < pieces_.number &&
           (next < pieces_.under_way || StepOf(next - pieces_.under_way, rank) == kEnded)) {
      BeginStep(rank, static_cast<int32_t>(next++), table_.first_step[static_cast<size_t>(rank)],
                now_us);
    }
  }

  void BeginStep(int32_t rank, int32_t piece, int32_t index, double now_us) {
    if (index == table_.first_step[static_cast<size_t>(rank) + 1]) {
      StepOf(piece, rank) = kEnded;
      return;
    }
    StepOf(piece, rank) = index;
    const Step& step = table_.steps[static_cast<size_t>(index)];
    double sent_us = now_us;
    for (int32_t i = step.first_train; i < step.first_train + step.trains; ++i)
      sent_us = std::max(sent_us, Send(piece, i, now_us));
    StepState& state = StateOf(piece, index);
    state.last_us = std::max(state.last_us, sent_us);
    state.first_us = std::max(state.first_us, now_us);
    if (state.missing == 0) EndStep(rank, piece, step, state);
  }

  StepState& StateOf(int32_t piece, int32_t index) {
    return states_[static_cast<size_t>(piece)][static_cast<size_t>(index)];
  }

  // -> when its last byte has gone out
  double Send(int32_t piece, int32_t index, double now_us) {
    const Train& train = table_.trains[static_cast<size_t>(index)];
    Line& out = out_[static_cast<size_t>(train.from)];
    const double wire_us = static_cast<double>(train.bytes) * network_.us_per_byte();
    const double begin = std::max(now_us, out.free_us);
    out.free_us = begin + train.messages * network_.gap_us + wire_us;
    const double first = begin + network_.alpha_us;
    Push(first, train.leaves_rack ? What::kAtUplink : What::kAtPort, piece, index,
         first + (train.messages - 1) * network_.gap_us + wire_us);
    return out.free_us;
  }

  void Take(const Event& event) {
    if (event.what == What::kStepDone) return TakeStepDone(event);
    const Train& train = table_.trains[static_cast<size_t>(event.index)];
    const auto bytes = static_cast<double>(train.bytes);
    const auto rack_of = [&](int32_t rank) { return static_cast<size_t>(rank / rack_size_); };
    if (event.what == What::kAtUplink || event.what == What::kAtDownlink) {
      const bool is_up = event.what == What::kAtUplink;
      Line& line = is_up ? up_[rack_of(train.from)] : down_[rack_of(train.to)];
      const auto [first, last] = line.Pass(event.at_us, event.last_us, bytes * uplink_us_per_byte_);
      return Push(first, is_up ? What::kAtDownlink : What::kAtPort, event.piece, event.index, last);
    }
    StepState& state = StateOf(event.piece, train.to_step);
    if (event.what == What::kAtPort) {
      const auto [first, last] = in_[static_cast<size_t>(train.to)].Pass(
          event.at_us, event.last_us, bytes * network_.us_per_byte());
      state.first_us = std::min(state.first_us, first + (last - first) / train.messages);
      return Push(last, What::kArrived, event.piece, event.index);
    }
    state.last_us = std::max(state.last_us, event.at_us);
    if (--state.missing > 0 || StepOf(event.piece, train.to) != train.to_step) return;
    EndStep(train.to, event.piece, table_.steps[static_cast<size_t>(train.to_step)], state);
  }

  // All has gone out and come in, by last_us.
  void EndStep(int32_t rank, int32_t piece, const Step& step, const StepState& state) {
    const double us_per_byte = network_.reduce_us_per_byte();
    double& until = ranks_[static_cast<size_t>(rank)].combines_until_us;
    double done = state.last_us;
    if (step.combined_bytes > 0) {
      until =
          std::max(until, state.first_us) + static_cast<double>(step.combined_bytes) * us_per_byte;
      done = std::max(until, done + static_cast<double>(step.last_segment_bytes) * us_per_byte);
    }
    Push(done + static_cast<double>(step.local_bytes) * us_per_byte, What::kStepDone, piece, rank);
  }

  void TakeStepDone(const Event& event) {
    const int32_t rank = event.index;
    BeginStep(rank, event.piece, StepOf(event.piece, rank) + 1, event.at_us);
    if (StepOf(event.piece, rank) == kEnded) BeginPieces(rank, event.at_us);
  }

  const MessageTable& table_;
  const Network& network_;
  const Pieces pieces_;
  const double uplink_us_per_byte_;
  const int32_t rack_size_;
  std::vector<Line> out_, in_, up_, down_;
  std::vector<RankState> ranks_;
  std::vector<std::vector<StepState>> states_;  // by piece and step
  std::vector<std::vector<int32_t>> step_of_;   // by piece and rank
  std::priority_queue<Event> events_;
  int64_t order_ = 0;
  double end_us_ = 0;
};

// Followed before the rest is taken to go on alike: some rounds of those under way.
constexpr int64_t kPiecesFollowed = 32;

}  // namespace

double MicrosecondsOf(const MessageTable& table, const Network& network, int32_t nodes,
                      Pieces pieces) {
  const auto run = [&](int64_t number) {
    return Simulation(table, network, nodes, {number, pieces.under_way}).Run();
  };
  if (pieces.number <= 2 * kPiecesFollowed) return run(pieces.number);
  const double half = run(kPiecesFollowed), all = run(2 * kPiecesFollowed);
  return all + (all - half) * static_cast<double>(pieces.number - 2 * kPiecesFollowed) /
                   static_cast<double>(kPiecesFollowed);
}

}  // namespace coordd::model
