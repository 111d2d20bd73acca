// What `coordd-worker selftest` submits, and what must come out. PURE: every rank makes the same
// cases and computes its expectation by itself, from the inputs of all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/protocol/tensor_spec.h"

namespace coordd {

struct SelftestTensor {
  TensorSpec spec;                           // of this rank
  uint64_t seed = 0;                         // of the values of all ranks
  std::vector<std::vector<int64_t>> splits;  // alltoall: [member][destination]; empty: even
  std::vector<int64_t> rows;                 // allgather, gather, alltoall: by member
  bool in_place = false;
  bool own_output = true;        // false: the runtime allocates
  int32_t set = 0;               // 0: all ranks; else SelftestSets()[set - 1]
  std::vector<int32_t> members;  // who takes part; empty: all ranks
  int32_t joined = 0;            // so many of the first members have joined, and give nothing
};

// The index of `rank` among those who take part.
size_t MemberIndex(const SelftestTensor& tensor, int32_t rank);
// Whether `rank` submits the tensor.
bool Submits(const SelftestTensor& tensor, int32_t rank);

// Tensors that are in flight together.
struct SelftestCase {
  std::string row;   // of the table: "allreduce float16"
  std::string name;  // for messages
  std::vector<SelftestTensor> tensors;
  bool grouped = false;
  bool shuffled = false;  // each rank submits in an order of its own
};

// The process sets of the cases: some ranks, sets that overlap, and one of one rank; as far as so
// many ranks have different ones.
std::vector<std::vector<int32_t>> SelftestSets(int32_t size);

std::vector<SelftestCase> SelftestCases(int32_t rank, int32_t size);

// One case for each rank: before case i, the ranks up to i - 1 have joined.
std::vector<SelftestCase> SelftestJoinRounds(int32_t rank, int32_t size);

// The value of one element of a rank's input: small, exactly representable in every dtype.
double InputValue(const SelftestTensor& tensor, int32_t rank, int64_t index);

// Each element of this rank's result, in float64. REQUIRES: Submits(tensor, rank).
std::vector<double> ExpectedResult(const SelftestTensor& tensor, int32_t rank, int32_t size);
// How far a result may be from it: rounding once per rank, for values of this magnitude.
double Tolerance(const SelftestTensor& tensor, int32_t size, double expected);

}  // namespace coordd
