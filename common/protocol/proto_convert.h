// Between the protocol's messages and the types of the pure core. Decoding checks every bound;
// encoding cannot fail.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/tensor_spec.h"
#include "coordd/v1/types.pb.h"
#include "google/protobuf/duration.pb.h"

namespace coordd {

// INVALID_ARGUMENT: an enumerator unknown to this version (named), or a bound of TensorSpec
// exceeded. Does not know the world size: Validate() checks the root.
absl::StatusOr<TensorSpec> FromProto(const v1::TensorSpec& proto);
void ToProto(const TensorSpec& spec, v1::TensorSpec* proto);

// Unspecified: kEnd. REQUIRES: a value of the enumeration.
OnFailure FromProto(v1::OnFailure on_failure);

// A duration that the wire cannot hold (the protocol's are some 10,000 years at most) is clamped.
absl::Duration FromProto(const google::protobuf::Duration& proto);
void ToProto(absl::Duration duration, google::protobuf::Duration* proto);

StoreVersion FromProto(const v1::StoreVersion& proto);
void ToProto(const StoreVersion& version, v1::StoreVersion* proto);

}  // namespace coordd
