#include "common/base/secret.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

TEST(SecretsEqual, ComparesLengthAndEveryByte) {
  EXPECT_TRUE(SecretsEqual("", ""));
  EXPECT_TRUE(SecretsEqual("secret", "secret"));
  EXPECT_FALSE(SecretsEqual("secret", "Secret"));
  EXPECT_FALSE(SecretsEqual("secret", "secreT"));
  EXPECT_FALSE(SecretsEqual("secret", "secre"));
  EXPECT_FALSE(SecretsEqual("", "secret"));
}

}  // namespace
}  // namespace coordd
