#include "client/coordctl/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "client/coordctl/serving_one.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/duration_text.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/wait_until.h"
#include "common/grpc/coordinator_failure.h"
#include "common/grpc/coordinator_probe.h"
#include "common/grpc/grpc_status.h"
#include "common/net/address.h"
#include "coordd/v1/admin.grpc.pb.h"

namespace coordd {

namespace {

// Where coordd closes the connection before the call is on it, as it does where more come than it
// lets in: some of so many tries get in even if most are closed.
constexpr int kTriesMax = 100;
constexpr BackoffOptions kPauses = {.initial = absl::Milliseconds(10),
                                    .max = absl::Milliseconds(250)};

// A state of 131,072 workers has some 50 MiB; a trace has 64 MiB of batches (TraceState of coordd)
// and some words about each of 1024 ranks.
constexpr int kMaxReceiveBytes = 72 << 20;

// What answers does so at once; a mute port has to be told from a slow one.
constexpr absl::Duration kProbeWithin = absl::Seconds(2);

absl::Status Spoken(const Target& target, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("coordd at ", target.address, ": ", status.message()));
}

// FAILED_PRECONDITION is what coordd says of a job; of what is no coordd it would be mistaken for
// that.
absl::Status OfTheWay(const absl::Status& why) {
  return absl::IsFailedPrecondition(why) ? absl::UnavailableError(why.message()) : why;
}

// Calls `method` of coordd's Admin service once.
template <typename Request, typename Reply>
absl::StatusOr<Reply> AskOnce(const Target& target, absl::Duration timeout, const Request& request,
                              grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                      const Request&, Reply*)) {
  COORDD_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFrom(target.tls));
  grpc::ChannelArguments arguments;
  // Each try has a connection of its own, without the pauses of one that has failed.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A site's web proxy has no business between an operator and coordd.
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  const auto stub =
      v1::Admin::NewStub(grpc::CreateCustomChannel(target.address, credentials, arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  Request asked = request;
  asked.set_token(target.token);
  Reply reply;
  COORDD_RETURN_IF_ERROR(FromCoordd((stub.get()->*method)(&context, asked, &reply)));
  return reply;
}

// The same until it is let in.
template <typename Request, typename Reply>
absl::StatusOr<Reply> AskOne(const Target& target, absl::Duration timeout, const Request& request,
                             grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                     const Request&, Reply*)) {
  Clock& clock = Clock::Real();
  Random random = Random::FromSystem();
  Backoff backoff(kPauses, random);
  const absl::Time begin = clock.Now();
  const absl::Time end = begin + std::max(timeout, target.tries_for);
  const absl::StatusOr<HostPort> address = ParseHostPort(target.address);
  CoordinatorFailure failure([&] {
    return address.ok() ? ProbeCoordinator(*address, target.tls, kProbeWithin, clock)
                        : absl::OkStatus();
  });
  bool was_closed = false;
  for (int tries = 1;; ++tries) {
    const absl::Duration given = std::min(timeout, end - clock.Now());
    absl::StatusOr<Reply> reply = AskOnce(target, given, request, method);
    if (reply.ok()) return reply;
    if (!absl::IsUnavailable(reply.status()) && !IsOfTheWay(reply.status()))
      return Spoken(target, reply.status());
    const absl::Status why = failure.Explain(reply.status());
    if (absl::IsFailedPrecondition(why) || absl::IsUnauthenticated(why)) return OfTheWay(why);
    const absl::Time next = clock.Now() + backoff.Next();
    const bool is_closed = WasTurnedAway(reply.status());
    was_closed = was_closed || is_closed;
    if (is_closed && tries < kTriesMax && next < end) {
      WaitUntil(clock, next);
      continue;
    }
    // The last try may have had too little time to tell anything.
    const bool is_late = absl::IsDeadlineExceeded(reply.status()) && was_closed && given < timeout;
    if (!(is_closed || is_late) || tries == 1) return Spoken(target, why);
    return Spoken(target, absl::UnavailableError(absl::StrCat(
                              why.message(), " (it closed each of ", tries, " connections within ",
                              DurationText(clock.Now() - begin), ")")));
  }
}

// The same of the one that serves.
template <typename Request, typename Reply>
absl::StatusOr<Reply> Ask(const Target& target, absl::Duration timeout, const Request& request,
                          grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Reply*)) {
  if (target.standbys.empty()) return AskOne(target, timeout, request, method);
  Clock& clock = Clock::Real();
  const auto probe = [&](const std::string& text) -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(text));
    return ProbeCoordinator(address, target.tls, kProbeWithin, clock);
  };
  const absl::StatusOr<Target> serving = ServingOne(target, probe, clock);
  if (!serving.ok()) return OfTheWay(serving.status());
  return AskOne(*serving, timeout, request, method);
}

}  // namespace

absl::StatusOr<v1::ServerState> FetchState(const Target& target, const std::string& job,
                                           absl::Duration timeout) {
  v1::GetStateRequest request;
  request.set_job(job);
  return Ask<v1::GetStateRequest, v1::ServerState>(target, timeout, request,
                                                   &v1::Admin::Stub::GetState);
}

absl::StatusOr<v1::TraceReply> FetchTrace(const Target& target, const v1::TraceRequest& request,
                                          absl::Duration timeout) {
  return Ask<v1::TraceRequest, v1::TraceReply>(target, timeout, request, &v1::Admin::Stub::Trace);
}

absl::StatusOr<v1::EventList> FetchEvents(const Target& target, const v1::GetEventsRequest& request,
                                          absl::Duration timeout) {
  return Ask<v1::GetEventsRequest, v1::EventList>(target, timeout, request,
                                                  &v1::Admin::Stub::GetEvents);
}

absl::StatusOr<v1::DismissReply> DismissWorkers(const Target& target,
                                                const v1::DismissRequest& request,
                                                absl::Duration timeout) {
  return Ask<v1::DismissRequest, v1::DismissReply>(target, timeout, request,
                                                   &v1::Admin::Stub::Dismiss);
}

absl::StatusOr<v1::ReportExitsReply> ReportExits(const Target& target,
                                                 const v1::ReportExitsRequest& request,
                                                 absl::Duration timeout) {
  return Ask<v1::ReportExitsRequest, v1::ReportExitsReply>(target, timeout, request,
                                                           &v1::Admin::Stub::ReportExits);
}

}  // namespace coordd
