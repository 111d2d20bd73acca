#include "common/base/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coordd {
namespace {

using testing::HasSubstr;

TEST(Identity, IsWhatItsUriSays) {
  for (const Role role :
       {Role::kOperator, Role::kLauncher, Role::kWorker, Role::kNode, Role::kViewer}) {
    const auto made = MakeIdentity(role, "alice-1.b_c@site");
    ASSERT_TRUE(made.ok()) << made.status();
    const auto read = IdentityOf(std::vector<std::string>{ToUri(*made)}, "");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, *made);
    EXPECT_EQ(RoleNamed(Name(role)), role);
  }
  EXPECT_EQ(ToUri({Role::kOperator, "alice"}), "coordd://operator/alice");
  EXPECT_EQ(ToString(Identity{Role::kWorker, "train7"}), "worker/train7");
}

TEST(Identity, OfAWorkerOrANodeMayBeAny) {
  EXPECT_TRUE(MakeIdentity(Role::kWorker, "*").ok());
  EXPECT_TRUE(MakeIdentity(Role::kNode, "*").ok());
  EXPECT_FALSE(MakeIdentity(Role::kOperator, "*").ok());
  EXPECT_FALSE(MakeIdentity(Role::kLauncher, "*").ok());
  EXPECT_FALSE(MakeIdentity(Role::kViewer, "*").ok());
}

TEST(Identity, HasNoNameThatCouldSayMore) {
  for (const std::string name :
       {"", "a b", "a/b", "a,URI:coordd://operator/b", "a\nb", "\xc3\xa4", "**"}) {
    EXPECT_FALSE(MakeIdentity(Role::kWorker, name).ok()) << name;
  }
  EXPECT_TRUE(MakeIdentity(Role::kWorker, std::string(kMaxIdentityNameBytes, 'x')).ok());
  EXPECT_FALSE(MakeIdentity(Role::kWorker, std::string(kMaxIdentityNameBytes + 1, 'x')).ok());
}

TEST(Identity, IsNoneOfACertificateWithoutAUriOfOurs) {
  for (const std::vector<std::string>& uris :
       {std::vector<std::string>{}, {"spiffe://cluster/ns/a"}, {"https://coordd/operator/a"}}) {
    const auto read = IdentityOf(uris, "coordd worker");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, (Identity{Role::kNone, "coordd worker"}));
    EXPECT_THAT(ToString(*read), HasSubstr("coordd worker"));
  }
}

TEST(Identity, IsRefusedWhereItIsNotClear) {
  for (const std::vector<std::string>& uris : {std::vector<std::string>{"coordd://operator"},
                                               {"coordd://operator/"},
                                               {"coordd://root/alice"},
                                               {"coordd:///alice"},
                                               {"COORDD://operator/alice"},
                                               {"Coordd://operator/alice"},
                                               {"coordd://Operator/alice"},
                                               {"coordd://viewer/a", "COORDD://operator/a"},
                                               {"coordd://operator/a/b"},
                                               {"coordd://operator/*"},
                                               {"coordd://none/alice"},
                                               {"coordd://worker/a", "coordd://operator/a"},
                                               {"coordd://worker/a", "coordd://worker/a"}}) {
    EXPECT_EQ(IdentityOf(uris, "x").status().code(), absl::StatusCode::kPermissionDenied)
        << uris[0];
  }
  // What another authority of the site puts beside it is not ours to judge.
  const std::vector<std::string> of_two = {"spiffe://a/b", "coordd://viewer/grafana"};
  EXPECT_TRUE(IdentityOf(of_two, "x").ok());
}

TEST(Identity, TakesItsNameFromALogin) {
  EXPECT_EQ(NameFrom("alice"), "alice");
  EXPECT_EQ(NameFrom("SITE\\alice b"), "SITE_alice_b");
  EXPECT_EQ(NameFrom(""), "owner");
  EXPECT_EQ(NameFrom(std::string(200, 'a')).size(), kMaxIdentityNameBytes);
}

TEST(Identity, OfNobodyIsNotOneThatACertificateCanHave) {
  EXPECT_FALSE(MakeIdentity(WithoutTls().role, WithoutTls().name).ok());
}

}  // namespace
}  // namespace coordd
