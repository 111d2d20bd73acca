#include "client/coordrun/plan/run_blame.h"

#include <signal.h>

namespace coordd {
namespace {

bool IsCause(const ProcessEnd& end) { return end.signal != 0 && end.signal != SIGABRT; }

}  // namespace

void RunBlame::Fail(int32_t worker, const ProcessEnd& end, absl::Time now) {
  worker_ = worker;
  is_cause_ = IsCause(end);
  window_end_ = now + kWindow;
}

void RunBlame::FailToo(int32_t worker, const ProcessEnd& end, absl::Time now) {
  const bool may_change = worker_ && reason_.empty() && !is_final_ && now <= window_end_;
  if (!may_change || is_cause_ || !IsCause(end)) return;
  worker_ = worker;
  is_cause_ = true;
}

void RunBlame::Accuse(int32_t worker, const std::string& reason, absl::Time now) {
  worker_ = worker;
  reason_ = reason;
  window_end_ = now;
}

void RunBlame::Learn(int32_t worker, const std::string& says) {
  if (!worker_ || !reason_.empty()) return;
  worker_ = worker;
  says_ = says;
  Close();
}

}  // namespace coordd
