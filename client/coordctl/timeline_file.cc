#include "client/coordctl/timeline_file.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"

namespace coordd {

absl::Status WriteTimeline(const std::string& file, const std::string& timeline) {
  struct stat found = {};
  // It is replaced: no device, and no link to one.
  if (lstat(file.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--output names ", file, ", which is no file, expected one or a new name"));
  }
  return WriteFileAtomically(file, timeline, 0644);
}

}  // namespace coordd
