// Members of a node session as its messages carry them: runs of consecutive numbers.
#pragma once

#include <cstdint>

#include "coordd/v1/node.pb.h"

namespace coordd {

using MemberRuns = google::protobuf::RepeatedPtrField<v1::MemberRun>;

// REQUIRES: `member` is higher than all that are in.
void AddMember(int32_t member, MemberRuns* runs);

// Calls `each` with every member, in order.
template <typename F>
void ForEachMember(const MemberRuns& runs, F each) {
  for (const v1::MemberRun& run : runs)
    for (int32_t i = 0; i < run.count(); ++i) each(run.first() + i);
}

}  // namespace coordd
