// What a node of a graph says about its collective.
#pragma once

#include <cstdint>
#include <string>

#include "client/c_api/coordd.h"

namespace coordd::tensorflow {

enum class Kind { kAllreduce, kAllgather, kBroadcast, kAlltoall, kReducescatter, kJoin, kBarrier };

// One per kernel, constant after its construction.
struct Kernel {
  Kind kind = Kind::kAllreduce;
  bool grouped = false;
  std::string name;
  int32_t reduce_op = COORDD_SUM;  // coordd_op_t
  int32_t root_rank = 0;
  float prescale_factor = 1;
  float postscale_factor = 1;
  int32_t process_set = 0;
};

// Whether the result has another shape than the input, and lies in memory of the library.
inline bool HasOwnResult(Kind kind) {
  return kind == Kind::kAllgather || kind == Kind::kAlltoall || kind == Kind::kReducescatter ||
         kind == Kind::kJoin;
}

}  // namespace coordd::tensorflow
