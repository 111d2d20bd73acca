#include "server/model/access_rules.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

struct Row {
  Call call;
  absl::string_view name;
  absl::string_view what;  // "may not ..."
  // By role: none of them is missing, and what is not here is not allowed.
  Grant none, oper, launcher, worker, node, viewer;
};

// A certificate without a role is of a coordd before it knew them. What runs with it goes on: it
// may do what its job needs. What takes an operator takes a new certificate.
constexpr Grant kNo = Grant::kNone, kOwn = Grant::kOwn, kAny = Grant::kAny;
constexpr Row kTable[] = {
    // The grants: none, operator, launcher, worker, node, viewer.
    {Call::kJoin, "Session", "be a worker", kOwn, kAny, kOwn, kOwn, kNo, kNo},
    {Call::kNodeSession, "NodeSession", "speak for the workers of a node", kOwn, kAny, kOwn, kOwn,
     kOwn, kNo},
    {Call::kStore, "Store", "use the store", kOwn, kAny, kOwn, kOwn, kNo, kNo},
    {Call::kReportExits, "ReportExits", "report how processes ended", kOwn, kAny, kOwn, kOwn, kNo,
     kNo},
    {Call::kGetState, "GetState", "see the state", kOwn, kAny, kOwn, kOwn, kNo, kAny},
    {Call::kGetEvents, "GetEvents", "read the events", kNo, kAny, kOwn, kNo, kNo, kAny},
    {Call::kTrace, "Trace", "trace", kNo, kAny, kOwn, kNo, kNo, kNo},
    {Call::kDismiss, "Dismiss", "evict or drain workers", kNo, kAny, kOwn, kNo, kNo, kNo},
};

const Row& RowOf(Call call) {
  for (const Row& row : kTable)
    if (row.call == call) return row;
  return kTable[0];  // there is none without a row
}

// Of the roles that people choose between.
std::string WhoMay(const Row& row) {
  std::string text = "operators";
  if (row.viewer == kAny) absl::StrAppend(&text, ", viewers");
  if (row.launcher == kOwn)
    absl::StrAppend(&text, ", launchers for jobs that they have made or whose token they bring");
  if (row.worker == kOwn) absl::StrAppend(&text, ", workers for the job whose token they bring");
  return text;
}

// What somebody with an old certificate is to do; empty: it is none.
std::string Remedy(const Identity& who) {
  if (who.role != Role::kNone) return "";
  return "; `coordctl certs DIR --role operator` makes one for operators, where DIR holds the "
         "ca.key that signed this one (or `coordctl certs` of a new DIR, for coordd and all)";
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
  // A worker's certificate that names the job was made for it.
  if (who.role == Role::kWorker) return who.name != kAnyName;
  return who.role == Role::kLauncher && job.owner == ToString(who);
}

absl::Status MayCall(const Identity& who, Call call, const JobClaim& job) {
  const Grant grant = GrantOf(who.role, call);
  if (grant == Grant::kAny || (grant == Grant::kOwn && IsOwn(who, job))) return absl::OkStatus();
  const Row& row = RowOf(call);
  std::string of;
  if (grant == Grant::kOwn && !job.job.empty()) {
    of = absl::StrCat(" of job ", PrintableText(ShortenedText(job.job, kMaxJobNameBytes)),
                      ", which is not its own");
  }
  return absl::PermissionDeniedError(absl::StrCat(ToString(who), " may not ", row.what, of, ": ",
                                                  WhoMay(row), " may", Remedy(who)));
}

absl::Status MayCallWithToken(const Identity& who, Call call, absl::string_view job) {
  return MayCall(who, call, {.job = std::string(job), .knows_token = true});
}

absl::Status MaySpeakFor(const Identity& relay, absl::string_view hostname,
                         absl::string_view node_id) {
  const bool is_bound = relay.role == Role::kNode && relay.name != kAnyName;
  if (!is_bound || relay.name == hostname || relay.name == node_id) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      ToString(relay), " may not speak for a worker of host ",
      PrintableText(ShortenedText(hostname, kMaxHostnameBytes)), ": expected one of its own node"));
}

std::string CallerText(const Caller& caller) {
  if (caller.identity == WithoutTls()) return caller.peer;
  return absl::StrCat(ToString(caller.identity), " at ", caller.peer);
}

std::string AskedBy(const Identity& who, absl::string_view says) {
  if (who == WithoutTls() || says.size() > kMaxAskedByBytes) return std::string(says);
  if (says.empty()) return ToString(who);
  return ShortenedText(absl::StrCat(ToString(who), " (which says: ", says, ")"), kMaxAskedByBytes);
}

}  // namespace coordd
