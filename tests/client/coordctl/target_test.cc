#include "client/coordctl/target.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const TlsFiles kTheirs = {.cert = "their.crt", .key = "their.key", .ca = "their.ca"};
const TlsFiles kMine = {.cert = "my.crt", .key = "my.key", .ca = "my.ca"};

Connection Running(const std::string& listen, const TlsFiles& tls = {}) {
  Connection connection;
  connection.listen = listen;
  connection.pid = 17;
  connection.tls = tls;
  return connection;
}

TEST(ChooseTarget, TakesTheOneThatRuns) {
  const auto target = ChooseTarget({}, {}, {Running("127.0.0.1:1", kTheirs)});
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->address, "127.0.0.1:1");
  EXPECT_EQ(target->tls.cert, "their.crt");
}

TEST(ChooseTarget, SaysWhenThereIsNoneOrSeveral) {
  EXPECT_THAT(ChooseTarget({}, {}, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--coordinator")));
  EXPECT_THAT(ChooseTarget({}, {}, {Running("127.0.0.1:1"), Running("127.0.0.1:2")}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("127.0.0.1:1 (pid 17)"), HasSubstr("127.0.0.1:2"))));
}

TEST(ChooseTarget, ANamedOneBringsItsCertificatesWhenItRunsHere) {
  const Connection live[] = {Running("127.0.0.1:1"), Running("127.0.0.1:2", kTheirs)};
  const auto here = ChooseTarget({.coordinator = "127.0.0.1:2", .tls = {}}, {}, live);
  ASSERT_TRUE(here.ok());
  EXPECT_EQ(here->tls.ca, "their.ca");
  const auto elsewhere = ChooseTarget({.coordinator = "10.0.0.1:2", .tls = {}}, {}, live);
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_FALSE(elsewhere->tls.enabled());
}

TEST(ChooseTarget, TakesNothingThatIsNoAddressAndNoEmptyOneForNone) {
  const Connection live[] = {Running("127.0.0.1:1")};
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", "http://127.0.0.1:1"}) {
    EXPECT_THAT(ChooseTarget({.coordinator = text, .tls = {}}, {}, live),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("--coordinator"), HasSubstr("HOST:PORT"))))
        << text;
  }
  EXPECT_THAT(ChooseTarget({}, {{"COORDD_ADDR", "launch"}}, live),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_ADDR")));
}

TEST(ChooseTarget, SeveralStandByForEachOther) {
  const Connection live[] = {Running("127.0.0.1:2", kTheirs)};
  const auto named = ChooseTarget({.coordinator = "10.0.0.1:1,127.0.0.1:2", .tls = {}}, {}, live);
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->address, "10.0.0.1:1");
  EXPECT_EQ(named->standbys, std::vector<std::string>{"127.0.0.1:2"});
  EXPECT_EQ(named->AddressText(), "10.0.0.1:1,127.0.0.1:2");
  EXPECT_EQ(named->tls.ca, "their.ca");
  const auto variable = ChooseTarget({}, {{"COORDD_ADDR", "a:1,b:2,c:3"}}, {});
  ASSERT_TRUE(variable.ok());
  EXPECT_EQ(variable->AddressText(), "a:1,b:2,c:3");
  EXPECT_THAT(ChooseTarget({}, {{"COORDD_ADDR", "a:1,b"}}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("COORDD_ADDR"), HasSubstr("HOST:PORT"))));
}

TEST(ChooseTarget, GivenCertificatesWin) {
  const auto target = ChooseTarget({.coordinator = "127.0.0.1:2", .tls = kMine}, {},
                                   {Running("127.0.0.1:2", kTheirs)});
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->tls.cert, "my.crt");
}

TEST(ChooseTarget, TheEnvironmentNamesOneInAWorkersShell) {
  const Environment environment = {{"COORDD_ADDR", "10.0.0.1:5"},
                                   {"COORDD_TLS_CA", "env.ca"},
                                   {"COORDD_TLS_CERT", "env.crt"},
                                   {"COORDD_TLS_KEY", "env.key"}};
  const auto target = ChooseTarget({}, environment, {Running("127.0.0.1:1")});
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->address, "10.0.0.1:5");
  EXPECT_EQ(target->tls.key, "env.key");
  const auto named = ChooseTarget({.coordinator = "127.0.0.1:1", .tls = {}}, environment, {});
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->address, "127.0.0.1:1");
}

TEST(ChooseTarget, VariablesHoldTheCertificatesOfOneThatIsNamedByOption) {
  const Environment environment = {
      {"COORDD_TLS_CA", "env.ca"}, {"COORDD_TLS_CERT", "env.crt"}, {"COORDD_TLS_KEY", "env.key"}};
  const auto elsewhere = ChooseTarget({.coordinator = "localhost:1", .tls = {}}, environment, {});
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_EQ(elsewhere->tls.ca, "env.ca");
  EXPECT_EQ(elsewhere->tls.cert, "env.crt");
  EXPECT_EQ(elsewhere->tls.key, "env.key");
  const auto mixed =
      ChooseTarget({.coordinator = "localhost:1", .tls = {.ca = "my.ca"}}, environment, {});
  ASSERT_TRUE(mixed.ok());
  EXPECT_EQ(mixed->tls.ca, "my.ca");
  EXPECT_EQ(mixed->tls.cert, "env.crt");
}

TEST(ChooseTarget, AnOptionBeatsItsVariableAndAVariableTheFile) {
  const Connection live[] = {Running("127.0.0.1:1", kTheirs)};
  const Environment environment = {
      {"COORDD_TLS_CA", "env.ca"}, {"COORDD_TLS_CERT", "env.crt"}, {"COORDD_TLS_KEY", "env.key"}};
  for (const auto& coordinator :
       {std::optional<std::string>("127.0.0.1:1"), std::optional<std::string>()}) {
    EXPECT_EQ(ChooseTarget({.coordinator = coordinator, .tls = kMine}, environment, live)->tls.ca,
              "my.ca");
    EXPECT_EQ(ChooseTarget({.coordinator = coordinator, .tls = {}}, environment, live)->tls.ca,
              "env.ca");
    EXPECT_EQ(ChooseTarget({.coordinator = coordinator, .tls = {}}, {}, live)->tls.ca, "their.ca");
  }
}

}  // namespace
}  // namespace coordd
