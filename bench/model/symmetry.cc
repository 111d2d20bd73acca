#include "bench/model/symmetry.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace coordd::model {
namespace {

// A message as a rank sees it: in which step, whose class is at the other end, how far away, and
// how large it is; from where, if it is one that is combined.
using Seen = std::tuple<size_t, int32_t, int32_t, int64_t, bool>;

std::pair<std::vector<Seen>, std::vector<Seen>> Messages(const Symmetry& symmetry,
                                                         const MakesSchedule& make, int32_t self) {
  std::vector<Seen> sent, received;
  const TransferSchedule schedule = make(Rank{self});
  for (size_t step = 0; step < schedule.steps.size(); ++step) {
    for (const SendOp& send : schedule.steps[step].sends) {
      const int32_t to = ToInt(send.to);
      sent.emplace_back(step, to % symmetry.classes, symmetry.Distance(self, to),
                        send.from.size_bytes, false);
    }
    for (const ReceiveOp& receive : schedule.steps[step].receives) {
      const int32_t from = ToInt(receive.from);
      received.emplace_back(step, from % symmetry.classes, symmetry.Distance(from, self),
                            receive.to.size_bytes, receive.operand.has_value());
    }
  }
  return {std::move(sent), std::move(received)};
}

}  // namespace

int32_t Symmetry::Distance(int32_t from, int32_t to) const {
  int32_t left_from = from / classes, left_to = to / classes, distance = 0, stride = 1;
  for (const int32_t digit : digits) {
    distance += (left_to % digit - left_from % digit + digit) % digit * stride;
    left_from /= digit;
    left_to /= digit;
    stride *= digit;
  }
  return distance;
}

bool Holds(const Symmetry& symmetry, const MakesSchedule& make, int32_t nodes) {
  const int32_t each = nodes / symmetry.classes;
  const std::set<int32_t> samples = {1, each / 3, each / 2, each - 1};
  for (int32_t of = 0; of < symmetry.classes; ++of) {
    const auto first = Messages(symmetry, make, of);
    for (const int32_t sample : samples) {
      if (sample < 1 || sample >= each) continue;
      if (Messages(symmetry, make, of + sample * symmetry.classes) != first) return false;
    }
  }
  return true;
}

Symmetry SymmetryOf(const MakesSchedule& make, int32_t nodes, int32_t rack_size) {
  const int32_t classes = rack_size == nodes ? 1 : rack_size;
  const int32_t each = nodes / classes;
  const Symmetry in_a_row{classes, {each}};
  if (Holds(in_a_row, make, nodes)) return in_a_row;
  const Symmetry in_grid{classes, PrimeFactorsOf(each)};
  if (Holds(in_grid, make, nodes)) return in_grid;
  return {nodes, {}};
}

std::vector<int32_t> PrimeFactorsOf(int32_t number) {
  std::vector<int32_t> factors;
  for (int32_t factor = 2; factor <= number; ++factor) {
    for (; number % factor == 0; number /= factor) factors.push_back(factor);
  }
  return factors;
}

}  // namespace coordd::model
