// What of a job outlives coordd, as bytes: the records of a StateStore.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "coordd/v1/records.pb.h"
#include "server/model/state_store.h"

namespace coordd {

// What CoordinatorState starts from. It is empty for a coordd that remembers nothing.
struct RestoredState {
  std::string cluster_id;
  Epoch epoch;
  std::map<std::string, v1::JobRecord> jobs;      // by name
  std::map<std::string, v1::DrainRecord> drains;  // of jobs, by their names
  Generation last_forgotten;                      // the highest of jobs that are gone
  bool outlives = true;                           // the process: false of state in memory
};

// DATA_LOSS: names the record that is not one. Generations of adopted state grow by
// kAdoptionStride.
absl::StatusOr<RestoredState> ParseRecords(const StoredState& stored);

StateWrite JobWrite(const std::string& job, const v1::JobRecord& record);
StateWrite JobWrite(const std::string& job, std::string record);  // as bytes
StateWrite JobRemoval(const std::string& job);
StateWrite DrainWrite(const std::string& job,
                      const v1::DrainRecord& record);  // of none: removes it
StateWrite ForgottenWrite(Generation last_forgotten);

// Proves a token without telling it: the same for the same cluster, job and token only. Empty for
// an empty token.
std::string TokenHash(absl::string_view cluster_id, absl::string_view job, absl::string_view token);

}  // namespace coordd
