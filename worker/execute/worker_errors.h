// The sentences in which a worker says why a collective failed. PURE.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/utf8.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// "rank 2 (host node3, pid 4711) was lost: its connection closed without a goodbye".
std::string DepartureText(const v1::Departure& departure);

// ABORTED "generation 1 ended: rank 2 (…) was lost: …". The first kMaxDeparturesNamed are named,
// the others counted.
inline constexpr int kMaxDeparturesNamed = 3;
absl::Status GenerationEndedBy(Generation generation, const v1::Abort& abort);

// Whether the members named there have all said goodbye: what has been called and does not need
// them may go on.
bool IsByGoodbyes(const absl::Status& status);

// ABORTED "generation 1 ended: `why`"; the same with another code.
absl::Status GenerationEndedError(Generation generation, absl::string_view why,
                                  absl::StatusCode code = absl::StatusCode::kAborted);

// The status, marked: the survivors form the next generation, which the program has to take note of
// (Worker::AwaitGeneration).
absl::Status GenerationChanged(absl::Status status);
bool IsGenerationChanged(const absl::Status& status);

// `status` with "tensor NAME: " in front, unless it is there already.
absl::Status ForTensor(const std::string& name, const absl::Status& status);

// What coordd says about a tensor, with the generation.
absl::Status TensorFailureError(Generation generation, const v1::TensorFailure& failure);

// Why coordd goes away, in its own words if it has any.
std::string StoppingText(const v1::Shutdown& shutdown);

// "600 s", "1.5 s": seconds as people write them.
std::string SecondsText(absl::Duration duration);

}  // namespace coordd
