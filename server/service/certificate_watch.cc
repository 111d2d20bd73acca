#include "server/service/certificate_watch.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "server/metrics/server_metrics.h"

namespace coordd {

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

void CertificateWatch::Nudge() { wishes_.TryPush(Wish{}); }

void CertificateWatch::Run() {
  while (!wishes_.Finished()) {
    const bool wanted = !wishes_.TakeAll(clock_.Now() + kLookEvery).empty();
    if (wanted || certificates_.FilesChanged()) Reload();
    WarnOfEnd(clock_.Now());
  }
}

// Of two files that are replaced one after the other, the first alone fits nothing: the next look
// has both.
void CertificateWatch::Reload() {
  const absl::StatusOr<bool> changed = certificates_.Reload();
  if (!changed.ok()) {
    std::string text = absl::StrCat("coordd goes on with the certificates that it has: ",
                                    changed.status().message());
    if (text != said_) COORDD_LOG(kWarning, text);
    said_ = std::move(text);
    return;
  }
  said_.clear();
  if (!*changed) return;
  metrics_.SetCertificateEnd(certificates_.end());
  warn_after_ = absl::InfinitePast();
  COORDD_LOG(kInfo, "new certificates, which end ",
             absl::FormatTime("%Y-%m-%d", certificates_.end(), absl::UTCTimeZone()),
             ": they count for connections that are made from now on");
}

void CertificateWatch::WarnOfEnd(absl::Time now) {
  const absl::Duration left = certificates_.end() - now;
  if (left > kWarnBefore || now < warn_after_) return;
  warn_after_ = now + kWarnEvery;
  const std::string end =
      absl::FormatTime("%Y-%m-%d %H:%M", certificates_.end(), absl::UTCTimeZone());
  COORDD_LOG(kWarning, "coordd's certificate, or its authority, ",
             left <= absl::ZeroDuration()
                 ? absl::StrCat("has ended at ", end, " UTC: nobody new gets in")
                 : absl::StrCat("ends at ", end, " UTC, in ",
                                DurationText(absl::Trunc(left, absl::Minutes(1)))),
             "; put new files in the place of --tls-cert, --tls-key and --tls-ca: they are read "
             "without a new start");
}

}  // namespace coordd
