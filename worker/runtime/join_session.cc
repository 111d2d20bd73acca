#include "worker/runtime/join_session.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/backoff.h"
#include "common/base/log.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/grpc/coordinator_failure.h"
#include "common/grpc/grpc_status.h"
#include "common/protocol/join_refusal.h"
#include "common/protocol/process_set_parts.h"
#include "common/protocol/proto_convert.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

// What one stream has come to.
struct Attempt {
  std::optional<v1::CoordinatorMessage> membership;
  std::vector<ControlEvent> early;
  std::optional<absl::Status> ended;
  v1::ProcessSets process_sets;
  bool is_complete = false;         // the membership with its process sets
  int64_t received = 0;             // messages
  std::string gathering;            // the last that was heard of other workers
  bool others_are_missing = false;  // by what was heard last
};

void Take(ControlEvent event, Attempt& attempt) {
  if (attempt.is_complete) {
    attempt.early.push_back(std::move(event));
    return;
  }
  if (auto* ended = std::get_if<StreamEnded>(&event)) {
    attempt.ended = std::move(ended->status);
    return;
  }
  auto* said = std::get_if<CoordinatorSaid>(&event);
  if (said == nullptr) return;  // nobody has a worker to submit to yet
  v1::CoordinatorMessage& message = said->message;
  ++attempt.received;
  if (message.sequence() != attempt.received) {
    attempt.ended = absl::InternalError(
        absl::StrCat("coordd sent message ", message.sequence(), ", expected ", attempt.received));
  } else if (message.has_waiting()) {
    const v1::Waiting& waiting = message.waiting();
    attempt.others_are_missing = waiting.joined() < waiting.min_workers();
    attempt.gathering =
        waiting.reason().empty()
            ? absl::StrCat(waiting.joined(), " of ", waiting.min_workers(), " workers have joined")
            : OneLine(waiting.reason());
  } else if (message.has_membership()) {
    attempt.is_complete = !message.membership().process_sets_follow();
    attempt.membership = std::move(message);
  } else if (message.has_process_sets() && attempt.membership.has_value()) {
    if (const absl::Status added = AddPart(message.process_sets(), attempt.process_sets);
        !added.ok()) {
      attempt.ended = absl::InternalError(absl::StrCat("coordd sent ", added.message()));
      return;
    }
    attempt.is_complete = !message.process_sets().more();
    attempt.membership->set_sequence(message.sequence());
  } else if (message.has_shutdown()) {
    attempt.ended = absl::UnavailableError(StoppingText(message.shutdown()));
  } else if (!message.has_lease_ack()) {
    attempt.ended = absl::InternalError("coordd spoke of a generation before its membership");
  }
}

absl::Status NotReached(const JoinRequest& request, const absl::Status& last) {
  return absl::UnavailableError(absl::StrCat("job ", request.join.job(),
                                             " could not be joined in time, coordd at ",
                                             request.coordinator, ": ", last.message()));
}

bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status);
}

absl::Status Final(const JoinRequest& request, const absl::Status& why) {
  return absl::Status(
      why.code(), absl::StrCat("job ", request.join.job(), " cannot be joined: ", why.message()));
}

// How a stream has ended before this worker had its place: with coordd's own refusal, which is said
// to be one, or with what neither side means to say.
absl::Status Refused(const absl::Status& ended) {
  if (ended.ok()) {
    return absl::InternalError(
        "coordd, or what answers in its place, has ended the session without a reason, before this "
        "worker was a member");
  }
  const bool is_broken = absl::IsInternal(ended) || absl::IsUnknown(ended) ||
                         absl::IsCancelled(ended) || absl::IsUnimplemented(ended) ||
                         absl::IsDeadlineExceeded(ended);
  if (is_broken) return ended;
  return absl::Status(ended.code(), absl::StrCat(kRefusedByCoordd, ended.message()));
}

// Nothing has come until the deadline.
absl::Status Late(const JoinRequest& request, const Attempt& attempt, CoordinatorFailure& failure) {
  if (attempt.received == 0) {
    const absl::Status why = failure.Explain(absl::DeadlineExceededError("Deadline Exceeded"));
    return IsFinal(why) ? Final(request, why) : NotReached(request, why);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("job ", request.join.job(), " has not started in time: ", attempt.gathering,
                   attempt.others_are_missing
                       ? "; expected the others to run, too, or a longer COORDD_JOIN_TIMEOUT"
                       : ""));
}

}  // namespace

absl::StatusOr<JoinedSession> JoinSession(const JoinRequest& request, const LinkFactory& make_link,
                                          ControlInbox& inbox, Clock& clock, Random& random) {
  Backoff backoff(BackoffOptions{}, random);
  absl::Time asking_since = clock.Now();
  bool told = false;
  CoordinatorFailure failure(request.probe);
  while (true) {
    std::unique_ptr<CoordinatorLink> link = make_link();
    link->Start({.on_message =
                     [&inbox](v1::CoordinatorMessage message) {
                       inbox.PushUnbounded(CoordinatorSaid{std::move(message)});
                     },
                 .on_closed =
                     [&inbox](absl::Status status) {
                       inbox.PushUnbounded(StreamEnded{std::move(status)});
                     }});
    v1::WorkerMessage hello;
    *hello.mutable_join() = request.join;
    ToProto(told ? clock.Now() - asking_since : absl::ZeroDuration(),
            hello.mutable_join()->mutable_asking_for());
    link->Send(std::move(hello)).IgnoreError();  // the stream's end says why

    Attempt attempt;
    while (!attempt.is_complete && !attempt.ended.has_value()) {
      // What has come by the deadline counts.
      for (ControlEvent& event : inbox.TakeAll(request.deadline)) Take(std::move(event), attempt);
      if (attempt.is_complete || attempt.ended.has_value() || clock.Now() < request.deadline)
        continue;
      return Late(request, attempt, failure);
    }
    if (attempt.is_complete)
      return JoinedSession{std::move(link), *std::move(attempt.membership),
                           std::move(attempt.process_sets), std::move(attempt.early)};
    if (!absl::IsUnavailable(*attempt.ended)) return Refused(*attempt.ended);
    const absl::Status why =
        attempt.received == 0 ? failure.Explain(*attempt.ended) : ForPeople(*attempt.ended);
    if (IsFinal(why)) return Final(request, why);
    // It had been let in, and its stream has broken: coordd may not know that yet, nor for long.
    if (attempt.received > 0) asking_since = clock.Now();
    const absl::Time next = clock.Now() + backoff.Next();
    if (next >= request.deadline) return NotReached(request, why);
    if (!told) {
      COORDD_LOG(kInfo, "job ", request.join.job(), " cannot be joined yet, asking coordd at ",
                 request.coordinator, " again: ", why.message());
      told = true;
    }
    // The stream has ended, so that nothing comes in: this is a wait until `next`. An attempt that
    // ended before its stream did (a Shutdown) is over only when the link has gone.
    link.reset();
    inbox.TakeAll(absl::InfinitePast());
    inbox.TakeAll(next);
  }
}

}  // namespace coordd
