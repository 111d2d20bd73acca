#include "server/model/access_rules.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

struct Row {
  Call call;
  absl::string_view name;
  // "may not ..." where no job is named, and where one is, whose name follows.
  absl::string_view what, what_of;
  // By role: none of them is missing, and what is not here is not allowed.
  Grant none, oper, launcher, worker, node, viewer;
};

// A certificate without a role is of a coordd before it knew them. What runs with it goes on: it
// may do what its job needs. What takes an operator takes a new certificate.
constexpr Grant kNo = Grant::kNone, kOwn = Grant::kOwn, kAny = Grant::kAny;
constexpr Row kTable[] = {
    // The grants: none, operator, launcher, worker, node, viewer.
    {Call::kJoin, "Session", "be a worker", "be a worker of job ", kOwn, kAny, kOwn, kOwn, kNo,
     kNo},
    {Call::kNodeSession, "NodeSession", "speak for the workers of a node",
     "speak for the workers of a node in job ", kOwn, kAny, kOwn, kOwn, kOwn, kNo},
    {Call::kStore, "Store", "use a job's store", "use the store of job ", kOwn, kAny, kOwn, kOwn,
     kNo, kNo},
    {Call::kReportExits, "ReportExits", "report how processes ended",
     "report how processes ended in job ", kOwn, kAny, kOwn, kOwn, kNo, kNo},
    {Call::kGetState, "GetState", "see the state of all jobs", "see the state of job ", kOwn, kAny,
     kOwn, kOwn, kNo, kAny},
    {Call::kGetEvents, "GetEvents", "read the events of all jobs", "read the events of job ", kNo,
     kAny, kOwn, kNo, kNo, kAny},
    {Call::kTrace, "Trace", "trace a job", "trace job ", kNo, kAny, kOwn, kNo, kNo, kNo},
    {Call::kDismiss, "Dismiss", "evict or drain workers", "evict or drain workers of job ", kNo,
     kAny, kOwn, kNo, kNo, kNo},
};

const Row& RowOf(Call call) {
  for (const Row& row : kTable)
    if (row.call == call) return row;
  return kTable[0];  // there is none without a row
}

// Of the roles that people choose between.
std::string WhoMay(const Row& row) {
  std::vector<absl::string_view> who;
  if (row.viewer == kAny) who.push_back("a viewer");
  if (row.launcher == kOwn) who.push_back("a launcher that has made the job or brings its token");
  if (row.worker == kOwn) who.push_back("a worker that brings its token");
  if (row.node == kOwn) who.push_back("a node");
  std::string text = "an operator";
  for (size_t i = 0; i < who.size(); ++i)
    absl::StrAppend(&text, i + 1 == who.size() ? (i == 0 ? " or " : ", or ") : ", ", who[i]);
  return text;
}

// Why this job, which may be another's, is not its own. Says no more of it than who has named it
// knows.
std::string WhyNot(const Identity& who, Grant grant, const JobClaim& job) {
  if (grant == kNo)
    return who.role == Role::kNone ? "its certificate says no role, and such a one may not"
                                   : absl::StrCat("no ", Name(who.role), " may");
  if (job.job.empty()) return "it may do so for jobs of its own, and has named none";
  if (who.role == Role::kWorker && who.name != kAnyName)
    return absl::StrCat("its certificate is for job ", who.name, " and those called after it");
  return who.role == Role::kLauncher ? "it has neither made that job nor brought its token"
                                     : "it has not brought that job's token";
}

// What somebody with an old certificate is to do; empty: it is none.
std::string Remedy(const Identity& who) {
  if (who.role != Role::kNone) return "";
  return "; `coordctl certs DIR --role operator` makes one for operators, where DIR holds the "
         "ca.key that has signed this one (or `coordctl certs` of a new DIR, for coordd and all)";
}

}  // namespace

bool IsOrIsGroupOf(absl::string_view name, absl::string_view job) {
  return absl::ConsumePrefix(&name, job) && (name.empty() || name[0] == '.');
}

absl::string_view Name(Call call) { return RowOf(call).name; }

Grant GrantOf(Role role, Call call) {
  const Row& row = RowOf(call);
  switch (role) {
    case Role::kNone:
      return row.none;
    case Role::kOperator:
      return row.oper;
    case Role::kLauncher:
      return row.launcher;
    case Role::kWorker:
      return row.worker;
    case Role::kNode:
      return row.node;
    case Role::kViewer:
      return row.viewer;
  }
  return Grant::kNone;
}

bool IsOwn(const Identity& who, const JobClaim& job) {
  if (who.role == Role::kWorker && who.name != kAnyName && !IsOrIsGroupOf(job.job, who.name))
    return false;
  if (!job.exists || job.knows_token) return true;
  // A worker's certificate that names the job was made for it. Names that begin like it are not
  // kept for it: such a job is its own where it has made it.
  if (who.role == Role::kWorker && job.job == who.name) return true;
  const bool may_own =
      who.role == Role::kLauncher || (who.role == Role::kWorker && who.name != kAnyName);
  return may_own && job.owner == ToString(who);
}

absl::Status MayCall(const Identity& who, Call call, const JobClaim& job) {
  const Grant grant = GrantOf(who.role, call);
  if (grant == Grant::kAny || (grant == Grant::kOwn && IsOwn(who, job))) return absl::OkStatus();
  const Row& row = RowOf(call);
  const std::string what =
      job.job.empty()
          ? std::string(row.what)
          : absl::StrCat(row.what_of, PrintableText(ShortenedText(job.job, kMaxJobNameBytes)));
  return absl::PermissionDeniedError(absl::StrCat(ToString(who), " may not ", what, ": ",
                                                  WhyNot(who, grant, job), "; expected ",
                                                  WhoMay(row), Remedy(who)));
}

absl::Status MayEverCall(const Identity& who, Call call) {
  return GrantOf(who.role, call) == Grant::kNone ? MayCall(who, call, {.job = ""})
                                                 : absl::OkStatus();
}

absl::Status MayCallWithToken(const Identity& who, Call call, absl::string_view job) {
  return MayCall(who, call, {.job = std::string(job), .knows_token = true});
}

absl::Status MaySpeakFor(const Identity& relay, absl::string_view hostname,
                         absl::string_view node_id) {
  const bool is_bound = relay.role == Role::kNode && relay.name != kAnyName;
  if (!is_bound || relay.name == hostname || relay.name == node_id) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(ToString(relay), " may not speak for a worker of host ",
                   PrintableText(ShortenedText(hostname, kMaxHostnameBytes)),
                   ": expected one whose host name or node id is ", relay.name));
}

std::string CallerText(const Caller& caller) {
  if (caller.identity == WithoutTls()) return caller.peer;
  return absl::StrCat(ToString(caller.identity), " at ", caller.peer);
}

std::string TracedText(const Caller* caller) {
  const bool is_known = caller != nullptr && caller->identity != WithoutTls();
  return absl::StrCat(is_known ? ToString(caller->identity) : "somebody",
                      " traces what its ranks execute");
}

std::string AskedBy(const Identity& who, absl::string_view says) {
  if (who == WithoutTls() || says.size() > kMaxAskedByBytes) return std::string(says);
  if (says.empty()) return ToString(who);
  return ShortenedText(absl::StrCat(ToString(who), " (which says: ", says, ")"), kMaxAskedByBytes);
}

}  // namespace coordd
