// What a member says that it knows of its generation, as it is kept until all have said it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/heard_messages.h"

namespace coordd {

// What one rank reports, all parts of its report in one: of what every rank reports alike, or of
// each lane, no more than is merged.
struct MemberReport {
  struct Launched {
    int32_t lane = 0;
    int64_t sequence = 0;  // of the last batch
  };

  // INVALID_ARGUMENT: it does not say to whom each message went.
  absl::Status Add(const v1::ResumeReport& part, HeardMessages& heard);
  // As Remains::Free, of what is not freed at once.
  int64_t Free(int64_t most);

  int64_t position = 0;  // the last that it has acted on; 0: it has not even heard its Membership
  std::vector<Launched> launched;
  std::vector<uint32_t> received;  // ids of `heard`, in order
  v1::ResumeReport rest;           // without lanes, received messages and what is in the store
  int64_t bytes = 0;               // of memory, without `heard`
};

}  // namespace coordd
