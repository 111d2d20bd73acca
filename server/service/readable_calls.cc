#include "server/service/readable_calls.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "server/door/caller.h"

namespace coordd {
namespace {

struct Lines {
  Mutex mu;
  LogLimit limit ABSL_GUARDED_BY(mu);
};
Lines& TheLines() {
  static Lines* lines = new Lines();
  return *lines;
}

}  // namespace

grpc::Status RefuseUnreadable(const grpc::CallbackServerContext& context,
                              const ConnectionTable& connections, absl::string_view method) {
  const std::string text = absl::StrCat(
      "the message of a call of ", method,
      " cannot be read: it is cut short, is of another kind, or has a text that is not UTF-8");
  Lines& lines = TheLines();
  MutexLock lock(&lines.mu);
  const std::optional<std::string> more = lines.limit.Pass(Clock::Real().Now());
  if (more.has_value()) {
    const auto caller = CallerOf(context, connections);
    COORDD_LOG(kWarning, "refused a call of ", caller.ok() ? (*caller)->peer : "one who has gone",
               ": ", text, *more);
  }
  return {grpc::StatusCode::INVALID_ARGUMENT, text};
}

}  // namespace coordd
