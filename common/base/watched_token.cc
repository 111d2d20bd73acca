#include "common/base/watched_token.h"

#include <sys/stat.h>

#include "common/base/secret.h"
#include "common/base/status_macros.h"
#include "common/base/token_file.h"

namespace coordd {

absl::StatusOr<std::shared_ptr<WatchedToken>> WatchedToken::Open(std::string named_by,
                                                                 std::string path) {
  COORDD_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(named_by, path));
  return std::shared_ptr<WatchedToken>(
      new WatchedToken(std::move(named_by), std::move(path), std::move(token)));
}

bool WatchedToken::Is(absl::string_view brought) const {
  MutexLock lock(&mu_);
  return SecretsEqual(brought, token_);
}

absl::StatusOr<bool> WatchedToken::Reload() {
  struct stat found = {};
  if (stat(path_.c_str(), &found) == 0 && S_ISFIFO(found.st_mode)) return false;
  COORDD_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(named_by_, path_));
  MutexLock lock(&mu_);
  return std::exchange(token_, std::move(token)) != token_;
}

}  // namespace coordd
