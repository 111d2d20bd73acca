// The one pair of functions between absl::Status and grpc::Status: the codes are the same numbers.
// (io)
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace coordd {

absl::Status FromGrpc(const grpc::Status& status);
// The status of a call to coordd, its message on one line (OneLine). Where the connection failed
// because this side speaks TLS and the other does not, it says so first. UNAVAILABLE, too: gRPC at
// coordd's side has ended the stream for want of memory, without a word of coordd's.
absl::Status FromCoordd(const grpc::Status& status);
// Whether a connection failed by what another try meets again: the two certificates do not fit, or
// one side speaks no TLS. In the words of gRPC and of its TLS library.
bool IsCertificateTrouble(const absl::Status& status);
// Whether a connection failed because the other side closed it before the call was on it, as coordd
// does where more come than it lets in: another try may get in. Never where nobody listens.
bool WasTurnedAway(const absl::Status& status);
// Whether `status` is of the way to coordd, in gRPC's words, and not of what coordd answered.
bool IsOfTheWay(const absl::Status& status);
// Whether the call had no connection to go over, so that coordd has not had it.
bool WasNeverSent(const absl::Status& status);
// Whether nobody listens there.
bool IsRefused(const absl::Status& status);
// The status of a call to coordd at its end, for people: what kept it from being reached in one
// sentence, instead of gRPC's words. Others as they are.
absl::Status ForPeople(const absl::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace coordd
