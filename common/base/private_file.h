// Whether a file with a secret is for this process alone.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <vector>

namespace coordd {

// Who this process is.
struct FileReader {
  uid_t user = 0;
  std::vector<gid_t> groups;
  static FileReader Self();
};

// Nobody but its owner reaches the file. Or it is root's, and a group of the reader, who is not
// root, may read it and no more: so Kubernetes hands a Secret to a pod that is not root (fsGroup).
// PURE
bool IsPrivate(const struct stat& file, const FileReader& reader);

}  // namespace coordd
