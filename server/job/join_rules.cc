#include "server/job/join_rules.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"

namespace coordd {
namespace {

absl::Status CheckSameLimit(absl::string_view what, int32_t given, int32_t agreed,
                            const std::string& worker) {
  if (given == 0 || given == agreed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker, " asks for ", what, " ", given, ", the job has ", agreed,
                   ": expected the same number of workers everywhere (COORDD_SIZE; coordrun -np, "
                   "--min-np and --max-np)"));
}

// A single heartbeat may be older than it: what a process has sent arrives, and then its end.
bool HasLivedSince(const JobWorker& worker, absl::Time since, absl::Duration lease,
                   absl::Time now) {
  if (worker.departs()) return false;
  return worker.heartbeat_before > since || now - since > lease;
}

absl::Status CheckToken(const v1::Join& join, const absl::Status& token, const std::string& job) {
  if (token.ok() || join.token().empty()) return token;
  // Most often a second run of the same script: its launcher has made a token of its own.
  return absl::UnauthenticatedError(absl::StrCat(
      "another run at this coordd is called job ", job,
      ", and its token is not this worker's: expected another name (coordrun --job NAME, "
      "COORDD_JOB_ID), or the token of that run (COORDD_TOKEN_FILE)"));
}

// What its launcher asks for is what the first worker's did.
absl::Status CheckAgreement(const v1::Join& join, OnFailure agreed_on_failure,
                            const RendezvousOptions& agreed) {
  const OnFailure on_failure = FromProto(join.on_failure());
  if (on_failure != agreed_on_failure) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", join.worker_id(), " says on_failure ", Name(on_failure),
                     ", the job's first worker said ", Name(agreed_on_failure)));
  }
  const v1::JobLimits& limits = join.limits();
  COORDD_RETURN_IF_ERROR(
      CheckSameLimit("min_workers", limits.min_workers(), agreed.min_workers, join.worker_id()));
  COORDD_RETURN_IF_ERROR(
      CheckSameLimit("max_workers", limits.max_workers(), agreed.max_workers, join.worker_id()));
  if (!limits.has_settling_window()) return absl::OkStatus();
  const absl::Duration window = FromProto(limits.settling_window());
  if (window == agreed.settling_window) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", join.worker_id(), " asks for a settling window of ", absl::FormatDuration(window),
      ", the job has ", absl::FormatDuration(agreed.settling_window)));
}

// What a worker starts has its environment, and so its place: where there is no `room` for it, that
// is said, too.
absl::Status ExplainFull(const v1::Join& join, const JobWorkers& workers, absl::Status room) {
  if (room.ok()) return room;
  for (const auto& [session, worker] : workers) {
    const v1::Join& other = worker.join;
    const bool is_of_its_launch = !join.launch().empty() && other.launch() == join.launch();
    const bool has_its_rank = join.launch().empty() && join.launcher_rank() >= 0 &&
                              other.launcher_rank() == join.launcher_rank() &&
                              other.host().node_id() == join.host().node_id();
    if (!is_of_its_launch && !has_its_rank) continue;
    return absl::Status(
        room.code(),
        absl::StrCat(room.message(), "; this process (pid ", join.pid(), ") has the variables of ",
                     Who(worker),
                     ": is it a child of that worker? A program that is to run apart from its "
                     "parent's job is started without its COORDD_ variables (and its launcher's: "
                     "COORDD_LAUNCHER=none)"));
  }
  return room;
}

// Some worker has not been heard since this one asks to join.
bool MayHaveRoomSoon(const v1::Join& join, const JobWorkers& workers, absl::Duration lease,
                     absl::Time now) {
  const absl::Time since = now - std::max(FromProto(join.asking_for()), absl::ZeroDuration());
  return absl::c_any_of(
      workers, [&](const auto& entry) { return !HasLivedSince(entry.second, since, lease, now); });
}

RendezvousOptions LimitsOfServer(const ServerOptions& options) {
  RendezvousOptions limits;
  limits.max_workers_of_server = options.max_workers_per_job;
  limits.settling_window_after_loss = options.settling_window_after_loss;
  limits.lease = options.lease;
  return limits;
}

}  // namespace

absl::StatusOr<RendezvousOptions> LimitsOf(const v1::Join& join, const std::string& job,
                                           const ServerOptions& options) {
  RendezvousOptions limits = LimitsOfServer(options);
  const v1::JobLimits& asked = join.limits();
  limits.min_workers = asked.min_workers() > 0 ? asked.min_workers() : options.min_workers;
  limits.max_workers = asked.max_workers() > 0 ? asked.max_workers() : options.max_workers;
  limits.settling_window =
      asked.has_settling_window() ? FromProto(asked.settling_window()) : options.settling_window;
  if (limits.max_workers > 0 && limits.min_workers > limits.max_workers) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job, ": min_workers ", limits.min_workers,
                     " is more than max_workers ", limits.max_workers));
  }
  const int32_t needed = std::max(limits.min_workers, limits.max_workers);
  if (needed > options.max_workers_per_job) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job, " asks for ", needed,
                                                      " workers, this coordd takes at most ",
                                                      options.max_workers_per_job, " per job"));
  }
  return limits;
}

RendezvousOptions LimitsOf(const v1::JobRecord& record, const ServerOptions& options) {
  RendezvousOptions limits = LimitsOfServer(options);
  limits.min_workers = record.min_workers();
  limits.max_workers = record.max_workers();
  limits.settling_window = FromProto(record.settling_window());
  return limits;
}

ReformingOptions ReformingOf(OnFailure on_failure, const ServerOptions& options) {
  return {.on_failure = on_failure,
          .report_window = options.lease,
          .timeout = options.reform_timeout,
          .reset_limit = options.reset_limit};
}

absl::Status NobodyIsTaken(const JobView& job) {
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job.name, " takes nobody any more: generation ", ToInt(job.rendezvous.generation()),
      " was its last one, ", job.reforming.none_follows()));
}

absl::Status MayJoin(const v1::Join& join, const JobView& job, const absl::Status& token,
                     absl::Time now) {
  if (!job.ended()) {
    COORDD_RETURN_IF_ERROR(CheckToken(join, token, job.name));
    COORDD_RETURN_IF_ERROR(
        CheckAgreement(join, job.reforming.on_failure(), job.rendezvous.options()));
    if (!job.reforming.none_follows().empty()) return NobodyIsTaken(job);
    COORDD_RETURN_IF_ERROR(job.drains.CheckHost(join.host()));
  }
  absl::Status fits = job.workers.Check(join);
  if (fits.ok() && !job.ended()) fits = ExplainFull(join, job.workers, job.rendezvous.CheckRoom());
  if (fits.ok() || !join.has_asking_for()) return fits;
  // Who is started again at once asks before coordd has noticed that its predecessor is dead.
  const bool may_be_gone = MayHaveRoomSoon(join, job.workers, job.options.lease, now);
  return may_be_gone ? absl::UnavailableError(fits.message()) : fits;
}

absl::Status CannotResume(const v1::Join& join, absl::string_view job, absl::string_view instead) {
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", join.worker_id(), " cannot resume: generation ",
                   join.resume().generation(), " of job ", job, " ", instead));
}

}  // namespace coordd
