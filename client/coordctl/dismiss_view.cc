#include "client/coordctl/dismiss_view.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/coordctl/state_view.h"
#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

std::string User(const Environment& environment) {
  for (const char* name : {"USER", "LOGNAME"}) {
    if (std::string user = Variable(environment, name); !user.empty()) return user;
  }
  return "somebody";
}

std::string What(v1::DismissAction action, const v1::DismissReply& reply) {
  switch (action) {
    case v1::DISMISS_ACTION_EVICT:
      return "is evicted";
    case v1::DISMISS_ACTION_DRAIN:
      return absl::StrCat("is asked to leave at its next commit, within ",
                          DurationText(reply.grace_seconds()));
    default:
      return "may stay";
  }
}

bool IsRank(const std::string& who, int32_t* rank) {
  return std::all_of(who.begin(), who.end(), [](char c) { return absl::ascii_isdigit(c); }) &&
         absl::SimpleAtoi(who, rank);
}

}  // namespace

absl::Status CheckDismiss(const DismissArguments& arguments) {
  int32_t rank = 0;
  if (!arguments.job.empty() || !IsRank(arguments.who, &rank)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", rank,
                   " is named without a job, and every job has one: expected --job "
                   "NAME (`coordctl jobs` lists them)"));
}

v1::DismissRequest DismissRequestFrom(const DismissArguments& arguments,
                                      const Environment& environment, const std::string& hostname) {
  v1::DismissRequest request;
  request.set_action(arguments.action);
  request.set_job(arguments.job);
  request.set_grace_seconds(arguments.grace_seconds);
  request.set_force(arguments.force);
  // Not as what: that is what a certificate proves, or nobody knows.
  request.set_asked_by(
      ShortenedText(absl::StrCat(User(environment), "@", hostname), kMaxAskedByBytes));
  int32_t rank = 0;
  if (IsRank(arguments.who, &rank)) {
    request.set_rank(rank);
  } else {
    request.set_node(ShortenedText(arguments.who, arguments.who.size()));
  }
  return request;
}

std::string DismissText(v1::DismissAction action, const v1::DismissReply& reply) {
  std::string text;
  for (const v1::DismissedWorker& worker : reply.workers()) {
    absl::StrAppend(&text,
                    worker.rank() < 0 ? absl::StrCat("worker ", worker.worker_id())
                                      : absl::StrCat("rank ", worker.rank()),
                    " (host ", worker.hostname(), ", pid ", worker.pid(), ") of job ", reply.job(),
                    " ", What(action, reply), "\n");
  }
  if (reply.node().empty()) return text;
  absl::StrAppend(&text, "node ", reply.node(),
                  action == v1::DISMISS_ACTION_DRAIN ? " takes no new workers of job "
                                                     : " takes new workers of job ",
                  reply.job(),
                  action == v1::DISMISS_ACTION_DRAIN
                      ? absl::StrCat(" until `coordctl drain ", reply.node(), " --job ",
                                     reply.job(), " --lift`\n")
                      : " again\n");
  return text;
}

}  // namespace coordd
