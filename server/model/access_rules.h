// Who may call what: the one table of roles and calls (SECURITY.md, "Roles").
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/identity.h"

namespace coordd {

enum class Call {
  kJoin,         // a session of a worker's own
  kNodeSession,  // one that carries those of a node's workers
  kStore,
  kReportExits,
  kGetState,
  kGetEvents,
  kTrace,
  kDismiss,  // evict, drain, and take back
};

// Whose jobs a role may call something for.
enum class Grant { kNone, kOwn, kAny };

// Who is calling, as the connection proves it.
struct Caller {
  Identity identity;
  std::string peer;      // host and port, as gRPC writes them: for the audit log
  bool of_node = false;  // speaks for the workers of a node
};

// Where he calls from, and who he is if that is known: "worker/train7 at ipv4:10.0.0.7:4711".
std::string CallerText(const Caller& caller);

// What is known of the job that is called for.
struct JobClaim {
  std::string job;           // empty: none is named
  bool exists = true;        // else there is nothing yet that could be another's
  std::string owner = {};    // ToString of who made it; empty: not known
  bool knows_token = false;  // the caller has brought its token, which is not empty
};

// PURE, all of them.
absl::string_view Name(Call call);  // as the protocol calls it: "Dismiss"; a store's are "Store"
Grant GrantOf(Role role, Call call);

// Whether the job called `name` is `job`, or one of a group of its workers, which is called after
// it
// ("train7.group-1f").
bool IsOrIsGroupOf(absl::string_view name, absl::string_view job);

// Whether the job is the caller's own: a launcher's or worker's that has made it or brings its
// token; never against the job that a worker's certificate names, which stands for that job and
// those called after it ("train7.group-1f").
bool IsOwn(const Identity& who, const JobClaim& job);

// PERMISSION_DENIED: a sentence that says who may. Whether a token is right where one is needed is
// not decided here: who is let join, for instance, still has to prove it to the job.
absl::Status MayCall(const Identity& who, Call call, const JobClaim& job);

// The same for calls that bring the job's token and are refused without: only what the certificate
// says counts.
absl::Status MayCallWithToken(const Identity& who, Call call, absl::string_view job);
// Whether there could be a job of which it may. PERMISSION_DENIED: as MayCall.
absl::Status MayEverCall(const Identity& who, Call call);

// PERMISSION_DENIED: the node that the certificate of a relay names is not the worker's.
absl::Status MaySpeakFor(const Identity& relay, absl::string_view hostname,
                         absl::string_view node_id);

// Who has asked, for people: what is proven, and behind it what the caller says of itself. What is
// longer than it may be stays as it is, to be refused.
std::string AskedBy(const Identity& who, absl::string_view says);

// The event of a trace, by who asks for it. null: nobody is known.
std::string TracedText(const Caller* caller);

}  // namespace coordd
