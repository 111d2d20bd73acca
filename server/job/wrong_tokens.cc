#include "server/job/wrong_tokens.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"

namespace coordd {
namespace {

// Without the port, which is another one each time.
absl::string_view HostOf(absl::string_view peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

std::string WrongTokens::Key(const Caller& caller, const std::string& job) {
  return absl::StrCat(ToString(caller.identity), "\n", HostOf(caller.peer), "\n", job);
}

bool WrongTokens::IsHardToGuess(absl::string_view token) {
  const std::set<char> different(token.begin(), token.end());
  return token.size() >= kHardBytes && different.size() >= kDifferentBytes;
}

absl::Status WrongTokens::MayTry(const Caller& caller, const std::string& job,
                                 absl::Time now) const {
  if (proved_.contains(Connection(caller, job))) return absl::OkStatus();
  const auto found = tries_.find(Key(caller, job));
  if (found == tries_.end() || found->second.next <= now) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(found->second.wrong, " wrong tokens for ",
                   job.empty() ? "all jobs" : absl::StrCat("job ", job),
                   " came from this host: the next one is looked at in ",
                   DurationText(std::max(found->second.next - now, absl::Milliseconds(1)))));
}

std::string WrongTokens::Connection(const Caller& caller, const std::string& job) {
  return absl::StrCat(ToString(caller.identity), "\n", caller.peer, "\n", job);
}

void WrongTokens::Proved(const Caller& caller, const std::string& job) {
  if (proved_.size() >= kMostProved) proved_.clear();
  proved_.insert(Connection(caller, job));
}

void WrongTokens::Note(const Caller& caller, const std::string& job, absl::Time now) {
  Forget(now);
  Tries& tries = tries_[Key(caller, job)];
  tries.last = now;
  if (++tries.wrong < kFree) return;
  constexpr int64_t kDoublings = 6;  // kFirst * 2^6 is more than kLongest
  const int64_t doublings = std::min(tries.wrong - kFree, kDoublings);
  tries.next = now + std::min(kFirst * (int64_t{1} << doublings), kLongest);
}

void WrongTokens::Forget(absl::Time now) {
  if (tries_.size() < kMost) return;
  std::erase_if(tries_, [now](const auto& one) { return one.second.last + kForgotten <= now; });
  if (tries_.size() < kMost) return;
  tries_.erase(std::min_element(tries_.begin(), tries_.end(), [](const auto& a, const auto& b) {
    return a.second.last < b.second.last;
  }));
}

}  // namespace coordd
