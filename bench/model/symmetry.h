// Ranks that do the same as others. Of 4,096 ranks of a ring 33 million messages would have to be
// followed, but they all do what rank 0 does, at the same time. PURE.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"

namespace coordd::model {

// Rank r is one of class r % classes, and r / classes is a number with these digits, the lowest
// first: a whole number for rings (one digit), bits for halving and doubling, the later dimensions
// of a grid. Whoever moves by one and the same step in each digit, which wraps, finds the schedule
// that he had, told of others as far away as before: then one rank of each class stands for all,
// and what it finishes at is exact, for it is what each of them finishes at.
struct Symmetry {
  int32_t classes = 0;
  std::vector<int32_t> digits;

  // How far `to` is from `from`, without their classes.
  int32_t Distance(int32_t from, int32_t to) const;
};

using MakesSchedule = std::function<TransferSchedule(Rank self)>;

// Whether `make` has it, by a sample of ranks: each class's, at four distances.
bool Holds(const Symmetry& symmetry, const MakesSchedule& make, int32_t nodes);

// Of nodes in racks of `rack_size`, or of one that all are in: the first that holds of what rings,
// powers of two, and a grid have; where none does, all ranks are classes of their own.
Symmetry SymmetryOf(const MakesSchedule& make, int32_t nodes, int32_t rack_size);

// Ascending.
std::vector<int32_t> PrimeFactorsOf(int32_t number);

}  // namespace coordd::model
