#include "server/service/certificate_watch.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/base/watched_token.h"
#include "server/metrics/server_metrics.h"

namespace coordd {
namespace {

// `said`: what was said last, and is now.
void SayOnce(std::string text, std::string& said) {
  if (text != said) COORDD_LOG(kWarning, text);
  said = std::move(text);
}

// For people, of whom none is told that something happens in 0.
absl::Duration RoundedUp(absl::Duration left) {
  return absl::Ceil(left, left > absl::Minutes(1) ? absl::Minutes(1) : absl::Seconds(1));
}

}  // namespace

CertificateWatch::CertificateWatch(ServerCertificates& certificates, ServerMetrics& metrics,
                                   Clock& clock)
    : certificates_(certificates), metrics_(metrics), clock_(clock), wishes_(1, clock) {
  metrics_.SetCertificateEnd(certificates_.end());
  WarnOfEnd(clock_.Now());
  thread_ = StartThread("certificates", [this] { Run(); });
}

CertificateWatch::~CertificateWatch() {
  wishes_.Close();
  thread_.join();
}

void CertificateWatch::WatchAlso(std::shared_ptr<WatchedToken> token) {
  MutexLock lock(&mu_);
  token_ = std::move(token);
}

void CertificateWatch::Nudge() { wishes_.TryPush(Wish{}); }

void CertificateWatch::Run() {
  while (!wishes_.Finished()) {
    const bool wanted = !wishes_.TakeAll(clock_.Now() + kLookEvery).empty();
    const bool is_gone_or_back = IsGoneOrBack();
    if (wanted || is_gone_or_back || certificates_.FilesChanged()) Reload();
    ReloadToken();
    WarnOfEnd(clock_.Now());
  }
}

// Whether a file is gone at the second look, as whoever replaces one may take it away first, or all
// are there again.
bool CertificateWatch::IsGoneOrBack() {
  const int looks_gone_before = looks_gone_;
  looks_gone_ = certificates_.IsFileGone() ? std::min(looks_gone_ + 1, 2) : 0;
  return looks_gone_ != looks_gone_before && std::max(looks_gone_, looks_gone_before) == 2;
}

// Of two files that are replaced one after the other, the first alone fits nothing: the next look
// has both.
void CertificateWatch::Reload() {
  const absl::StatusOr<bool> changed = certificates_.Reload();
  if (!changed.ok()) {
    SayOnce(absl::StrCat("coordd goes on with the certificates that it has: ",
                         changed.status().message()),
            said_);
    return;
  }
  const bool mended = !std::exchange(said_, "").empty();
  if (mended && !*changed)
    COORDD_LOG(kInfo,
               "the files of --tls-cert, --tls-key and --tls-ca can be used again: they are "
               "what coordd has gone on with");
  if (!*changed) return;
  metrics_.SetCertificateEnd(certificates_.end());
  warn_after_ = absl::InfinitePast();
  COORDD_LOG(kInfo, "new certificates, which end ",
             absl::FormatTime("%Y-%m-%d", certificates_.end(), absl::UTCTimeZone()),
             ": they count for connections that are made from now on");
}

// Of a few bytes nobody need ask first whether they have changed.
void CertificateWatch::ReloadToken() {
  std::shared_ptr<WatchedToken> token;
  {
    MutexLock lock(&mu_);
    token = token_;
  }
  if (token == nullptr) return;
  const absl::StatusOr<bool> changed = token->Reload();
  if (!changed.ok()) {
    SayOnce(absl::StrCat("coordd goes on with the token that it has: ", changed.status().message()),
            said_of_token_);
    return;
  }
  const bool mended = !std::exchange(said_of_token_, "").empty();
  if (mended && !*changed)
    COORDD_LOG(kInfo,
               "the file of --http-token-file can be used again: it holds the token that "
               "coordd has gone on with");
  if (*changed) COORDD_LOG(kInfo, "HTTP has a new token, and the one before lets in no more");
}

void CertificateWatch::WarnOfEnd(absl::Time now) {
  const absl::Duration left = certificates_.end() - now;
  if (left > kWarnBefore || now < warn_after_) return;
  // Their end itself is told, too.
  warn_after_ = left > absl::ZeroDuration() ? now + std::min(left, kWarnEvery) : now + kWarnEvery;
  const std::string end =
      absl::FormatTime("%Y-%m-%d %H:%M", certificates_.end(), absl::UTCTimeZone());
  COORDD_LOG(kWarning, "coordd's certificate, or its authority, ",
             left <= absl::ZeroDuration()
                 ? absl::StrCat("has ended at ", end, " UTC: nobody new gets in")
                 : absl::StrCat("ends at ", end, " UTC, in ", DurationText(RoundedUp(left))),
             "; put new files in the place of --tls-cert, --tls-key and --tls-ca: they are read "
             "without a new start, but for a service to which systemd gives copies of them, which "
             "gets new ones after SIGUSR1");
}

}  // namespace coordd
