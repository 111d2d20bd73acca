#include "common/base/watched_token.h"

#include <sys/stat.h>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
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

// ReadTokenFile, of what a header can carry: with anything else nobody would ever be let in.
absl::StatusOr<std::string> ReadHeaderToken(absl::string_view named_by, const std::string& path,
                                            bool* has_end = nullptr) {
  COORDD_ASSIGN_OR_RETURN(std::string token, ReadTokenFile(named_by, path, has_end));
  if (absl::c_none_of(token, absl::ascii_iscntrl)) return token;
  const bool has_lines = absl::c_linear_search(token, '\n');
  return absl::InvalidArgumentError(absl::StrCat(named_by, " names ", path, ", which holds ",
                                                 has_lines ? "several lines" : "control characters",
                                                 "; expected a token of one line"));
}

}  // namespace

absl::Status WatchedToken::Check(absl::string_view named_by, const std::string& path) {
  return IsPipe(path) ? absl::OkStatus() : ReadHeaderToken(named_by, path).status();
}

absl::StatusOr<std::shared_ptr<WatchedToken>> WatchedToken::Open(std::string named_by,
                                                                 std::string path) {
  const bool from_pipe = IsPipe(path);
  COORDD_ASSIGN_OR_RETURN(std::string token, ReadHeaderToken(named_by, path));
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
  COORDD_ASSIGN_OR_RETURN(std::string token, ReadHeaderToken(named_by_, path_, &has_end));
  MutexLock lock(&mu_);
  const std::string half = std::exchange(half_, "");
  if (!has_end && token != token_ && token != half) {
    half_ = std::move(token);
    return false;
  }
  return std::exchange(token_, std::move(token)) != token_;
}

}  // namespace coordd
