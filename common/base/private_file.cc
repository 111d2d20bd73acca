#include "common/base/private_file.h"

#include <unistd.h>

#include <algorithm>

namespace coordd {

FileReader FileReader::Self() {
  FileReader self;
  self.user = geteuid();
  const int count = getgroups(0, nullptr);
  if (count > 0) self.groups.resize(static_cast<size_t>(count));
  const int got = getgroups(count, self.groups.data());
  self.groups.resize(static_cast<size_t>(std::max(got, 0)));
  self.groups.push_back(getegid());
  return self;
}

bool IsPrivate(const struct stat& file, const FileReader& reader) {
  if ((file.st_mode & (S_IRWXG | S_IRWXO)) == 0) return true;
  const bool group_reads_only = (file.st_mode & (S_IRWXG | S_IRWXO)) == S_IRGRP;
  const bool is_ours =
      std::find(reader.groups.begin(), reader.groups.end(), file.st_gid) != reader.groups.end();
  return group_reads_only && file.st_uid == 0 && reader.user != 0 && is_ours;
}

}  // namespace coordd
