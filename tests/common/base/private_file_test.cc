#include "common/base/private_file.h"

#include "gtest/gtest.h"

namespace coordd {
namespace {

constexpr uid_t kRoot = 0, kNobody = 65534;
const FileReader kPod = {.user = kNobody, .groups = {kNobody}};

struct stat File(mode_t mode, uid_t owner, gid_t group) {
  struct stat file = {};
  file.st_mode = S_IFREG | mode;
  file.st_uid = owner;
  file.st_gid = group;
  return file;
}

TEST(IsPrivate, IsWhatOnlyItsOwnerReaches) {
  EXPECT_TRUE(IsPrivate(File(0600, kNobody, 100), kPod));
  EXPECT_TRUE(IsPrivate(File(0400, kRoot, 0), {.user = kRoot, .groups = {0}}));
  EXPECT_FALSE(IsPrivate(File(0644, kNobody, kNobody), kPod));
  EXPECT_FALSE(IsPrivate(File(0640, kNobody, kNobody), kPod));
}

TEST(IsPrivate, IsASecretOfKubernetesForAPodThatIsNotRoot) {
  EXPECT_TRUE(IsPrivate(File(0440, kRoot, kNobody), kPod));
  EXPECT_FALSE(IsPrivate(File(0440, kRoot, 100), kPod));      // another's group
  EXPECT_FALSE(IsPrivate(File(0460, kRoot, kNobody), kPod));  // the group may write
  EXPECT_FALSE(IsPrivate(File(0444, kRoot, kNobody), kPod));
  EXPECT_FALSE(IsPrivate(File(0440, 1000, kNobody), kPod));  // another user may change it
  EXPECT_FALSE(IsPrivate(File(0440, kRoot, 0), {.user = kRoot, .groups = {0}}));
}

TEST(FileReader, KnowsItsGroups) { EXPECT_FALSE(FileReader::Self().groups.empty()); }

}  // namespace
}  // namespace coordd
