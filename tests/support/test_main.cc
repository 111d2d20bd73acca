// Of a program that holds the tests of several files: `--from=FILE` runs one file's. ctest lists
// each file as a test of its own, while they are compiled and linked together.
#include <gmock/gmock.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace {

// The tests that were written in `file`, as gtest's filter takes them; empty: there are none, or
// one that no file would run.
std::string FilterOf(absl::string_view file) {
  const std::string path = absl::StrCat("/", file);
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!absl::EndsWith(test.file(), "_test.cc")) {
        std::fprintf(stderr, "%s.%s is from %s: a program of its own would run it\n", suite.name(),
                     test.name(), test.file());
        return "";
      }
      if (absl::EndsWith(test.file(), path))
        absl::StrAppend(&filter, filter.empty() ? "" : ":", suite.name(), ".", test.name());
    }
  }
  if (filter.empty())
    std::fprintf(stderr, "no test of this program is from %s\n", std::string(file).c_str());
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  absl::string_view file;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (!absl::ConsumePrefix(&argument, "--from=")) {
      std::fprintf(stderr, "unknown argument '%s': expected --from=FILE or gtest's own\n", argv[i]);
      return 2;
    }
    file = argument;
  }
  if (!file.empty()) {
    const std::string filter = FilterOf(file);
    if (filter.empty()) return 2;
    // What the environment's filter takes away stays away.
    const std::string given = testing::GTEST_FLAG(filter);
    const size_t minus = given.find('-');
    testing::GTEST_FLAG(filter) = filter + (minus == std::string::npos ? "" : given.substr(minus));
  }
  return RUN_ALL_TESTS();
}
