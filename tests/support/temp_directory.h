// A directory that is gone with the test.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/check.h"

namespace coordd {

class TempDirectory {
 public:
  TempDirectory() : path_(std::filesystem::temp_directory_path() / "coordd-test-XXXXXX") {
    COORDD_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  // In `parent` where that can be, else where others are: /dev/shm has no slow disk behind it.
  explicit TempDirectory(const std::string& parent) : path_(parent + "/coordd-test-XXXXXX") {
    if (mkdtemp(path_.data()) != nullptr) return;
    path_ = std::filesystem::temp_directory_path() / "coordd-test-XXXXXX";
    COORDD_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string FileText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace coordd
