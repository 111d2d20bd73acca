// Runs tests/scripts/*.txt. A script is a list of blocks: a command, a line "----", what it leads
// to, an empty line. Lines that start with # are for the reader.
//
// `server_story_test --rewrite` writes the scripts anew with what happens now. Commit what it wrote
// only if you understand what caused each change and want it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/server/support/story.h"

namespace coordd {
namespace {

bool rewrite = false;

struct Block {
  std::vector<std::string> comments;  // and empty lines, in front of the command
  std::string command;
  std::vector<std::string> expected;
};

std::vector<Block> Read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<Block> blocks(1);
  std::string line;
  bool in_output = false;
  while (std::getline(in, line)) {
    if (in_output && line.empty()) {
      in_output = false;
      blocks.emplace_back();
    } else if (in_output) {
      blocks.back().expected.push_back(line);
    } else if (line == "----") {
      in_output = true;
    } else if (line.empty() || absl::StartsWith(line, "#")) {
      blocks.back().comments.push_back(line);
    } else {
      blocks.back().command = line;
    }
  }
  return blocks;
}

std::vector<std::filesystem::path> Scripts() {
  std::vector<std::filesystem::path> scripts;
  for (const auto& entry : std::filesystem::directory_iterator(COORDD_SCRIPTS_DIR)) {
    if (entry.path().extension() == ".txt") scripts.push_back(entry.path());
  }
  std::sort(scripts.begin(), scripts.end());
  return scripts;
}

class StoryTest : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(StoryTest, HappensAsWritten) {
  Story story;
  std::string rewritten;
  for (const Block& block : Read(GetParam())) {
    for (const std::string& comment : block.comments) absl::StrAppend(&rewritten, comment, "\n");
    if (block.command.empty()) continue;
    const std::vector<std::string> lines = story.Run(block.command);
    for (const std::string& line : lines) EXPECT_THAT(line, Not(::testing::StartsWith("BROKEN")));
    absl::StrAppend(&rewritten, block.command, "\n----\n", absl::StrJoin(lines, "\n"),
                    lines.empty() ? "" : "\n", "\n");
    if (!rewrite) {
      EXPECT_EQ(absl::StrJoin(lines, "\n"), absl::StrJoin(block.expected, "\n"))
          << "after: " << block.command;
    }
  }
  if (rewrite) {
    while (absl::EndsWith(rewritten, "\n\n")) rewritten.pop_back();
    std::ofstream(GetParam()) << rewritten;
  }
}

INSTANTIATE_TEST_SUITE_P(Scripts, StoryTest, ::testing::ValuesIn(Scripts()),
                         [](const auto& script) { return script.param.stem().string(); });

}  // namespace
}  // namespace coordd

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rewrite") == 0) coordd::rewrite = true;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
