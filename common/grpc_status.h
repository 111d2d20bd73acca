// The one pair of functions between absl::Status and grpc::Status: the codes are the same numbers.
// (io)
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace coordd {

absl::Status FromGrpc(const grpc::Status& status);
// Of a call to coordd. Where the connection failed because this side speaks TLS and the other does
// not, it says so first.
absl::Status FromCoordd(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace coordd
