#include "common/base/token_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/named_file.h"
#include "common/base/private_file.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr size_t kMaxTokenFileBytes = 64 << 10;

absl::Status Refused(absl::string_view named_by, const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(named_by, " names ", path, ", which ", why));
}

// What is at `path`, as far as that can be seen without reading it.
absl::Status CheckKind(absl::string_view named_by, const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0)
    return Refused(named_by, path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  if (S_ISDIR(found.st_mode))
    return Refused(named_by, path, "is a folder; expected a file with a token");
  if (!S_ISREG(found.st_mode) || IsPrivate(found, FileReader::Self())) return absl::OkStatus();
  return Refused(
      named_by, path,
      absl::StrCat("has mode 0", found.st_mode >> 6 & 7, found.st_mode >> 3 & 7, found.st_mode & 7,
                   ", so others than its owner can reach the token; expected 0600 "
                   "(chmod 600 ",
                   path, ")"));
}

}  // namespace

absl::StatusOr<std::string> ReadTokenFile(absl::string_view named_by, const std::string& path,
                                          bool* has_end, absl::Duration pipe_within) {
  COORDD_RETURN_IF_ERROR(CheckKind(named_by, path));
  const absl::StatusOr<std::string> read = ReadNamedFile(path, kMaxTokenFileBytes, pipe_within);
  if (!read.ok()) return Refused(named_by, path, read.status().message());
  const std::string& text = *read;
  if (text.size() > kMaxTokenFileBytes) {
    return Refused(named_by, path,
                   absl::StrCat("is larger than ", kMaxTokenFileBytes, " bytes; expected a token"));
  }
  if (has_end != nullptr) *has_end = !text.empty() && text.back() == '\n';
  std::string token(absl::StripAsciiWhitespace(text));
  if (token.empty()) return Refused(named_by, path, "is empty; expected a token");
  return token;
}

absl::Status CheckTokenFile(absl::string_view named_by, const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode)) {
    return Refused(named_by, path,
                   absl::StrCat("is ", KindOfFile(found.st_mode),
                                "; expected a file, since it is read several times"));
  }
  return ReadTokenFile(named_by, path).status();
}

}  // namespace coordd
