#include "common/base/watched_token.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "common/base/secret.h"
#include "common/base/status_macros.h"
#include "common/base/token_file.h"

namespace coordd {
namespace {

bool IsPipe(const std::string& path) {
  struct stat found = {};
  return stat(path.c_str(), &found) == 0 && S_ISFIFO(found.st_mode);
}

}  // namespace

absl::StatusOr<std::shared_ptr<WatchedToken>> WatchedToken::Open(std::string named_by,
                                                                 std::string path) {
  const bool from_pipe = IsPipe(path);
  COORDD_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(named_by, path));
  return std::shared_ptr<WatchedToken>(
      new WatchedToken(std::move(named_by), std::move(path), from_pipe, std::move(token)));
}

bool WatchedToken::Is(absl::string_view brought) const {
  MutexLock lock(&mu_);
  return SecretsEqual(brought, token_);
}

absl::StatusOr<bool> WatchedToken::Reload() {
  if (from_pipe_) return false;
  if (IsPipe(path_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(named_by_, " names ", path_, ", which is a pipe now; expected a file"));
  }
  bool has_end = false;
  COORDD_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(named_by_, path_, &has_end));
  MutexLock lock(&mu_);
  const std::string half = std::exchange(half_, "");
  if (!has_end && token != token_ && token != half) {
    half_ = std::move(token);
    return false;
  }
  return std::exchange(token_, std::move(token)) != token_;
}

}  // namespace coordd
