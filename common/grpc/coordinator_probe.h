// What is at an address that should be coordd's, where gRPC only says that it could not connect:
// a connection of our own, its first words in both directions, and its end. (io)
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"

namespace coordd {

// Blocks up to `within`, and twice that where it takes two connections.
// OK: an HTTP/2 server answers and takes what this side presents, so that it may be coordd.
// FAILED_PRECONDITION: it is no coordd, or one of both sides speaks no TLS; UNAUTHENTICATED: the
// certificates do not fit. Waiting mends neither, and the sentence is whole.
// ABORTED: it closes once it has seen our certificate, without saying why, as gRPC's servers do
// with one that they do not take; a whole sentence, too, but a crowded coordd may happen to do the
// same. UNAVAILABLE: anything else, which may change; words that follow "coordd at HOST:PORT: ".
absl::Status ProbeCoordinator(const HostPort& address, const TlsFiles& tls, absl::Duration within,
                              Clock& clock);

}  // namespace coordd
