#include "common/token_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

absl::Status Unreadable(absl::string_view named_by, const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(named_by, " names ", path, ", which cannot be read or is empty"));
}

absl::Status CheckMode(absl::string_view named_by, const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) ||
      (found.st_mode & (S_IRWXG | S_IRWXO)) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      named_by, " names ", path, ", which has mode 0", found.st_mode >> 6 & 7,
      found.st_mode >> 3 & 7, found.st_mode & 7,
      ", so others than its owner can reach the job's token; expected 0600 (chmod 600 ", path,
      ")"));
}

}  // namespace

absl::StatusOr<std::string> ReadTokenFile(absl::string_view named_by, const std::string& path) {
  COORDD_RETURN_IF_ERROR(CheckMode(named_by, path));
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return Unreadable(named_by, path);
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

absl::Status CheckTokenFile(absl::string_view named_by, const std::string& path) {
  COORDD_RETURN_IF_ERROR(CheckMode(named_by, path));
  return access(path.c_str(), R_OK) == 0 ? absl::OkStatus() : Unreadable(named_by, path);
}

}  // namespace coordd
