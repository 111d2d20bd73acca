#include "client/coordctl/whoami.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

WorkerConnection OverTls() {
  return {.tls = {.cert = "/t/worker.crt", .key = "/t/worker.key", .ca = "/t/ca.crt"},
          .who = "coordd://worker/train7",
          .authority = "CN=lab",
          .end = "2027-01-02 03:04:05 UTC",
          .trusted = "CN=old lab",
          .problem = ""};
}

TEST(Whoami, SaysWhetherTheConnectionIsTlsWhoseAndUntilWhen) {
  const std::string text = WhoamiText({}, "", OverTls());
  EXPECT_THAT(text, HasSubstr("connection   TLS, as coordd://worker/train7 (/t/worker.crt), signed "
                              "by CN=lab, valid until 2027-01-02 03:04:05 UTC; coordd's "
                              "certificate must be of the authority in /t/ca.crt, CN=old lab\n"));
  EXPECT_THAT(WhoamiText({}, "", {}), HasSubstr("connection   without TLS: none of COORDD_TLS_CA"));
  WorkerConnection fails = OverTls();
  fails.problem = "TLS certificate /t/worker.crt has expired";
  EXPECT_THAT(WhoamiText({}, "", fails),
              HasSubstr("TLS, which fails: TLS certificate /t/worker.crt has expired"));
}

TEST(Whoami, SaysWhatItHasLookedAt) {
  EXPECT_THAT(
      WhoamiText({}, "", {}),
      HasSubstr("seen here    in variables and files of this machine; no coordd was asked"));
  EXPECT_EQ(Json::parse(WhoamiJson({}, "", {}))["asked_coordd"], false);
  EXPECT_THAT(
      WhoamiOfACoordd("c7:29650").message(),
      HasSubstr("whoami asks no coordd: it tells what the variables and certificates of this "
                "machine say; 'coordctl status --coordinator c7:29650' tells whether"));
}

TEST(Whoami, SaysItToPrograms) {
  const Json json = Json::parse(WhoamiJson({}, "", OverTls()))["connection"];
  EXPECT_EQ(json["tls"], true);
  EXPECT_EQ(json["authority"], "CN=lab");
  EXPECT_EQ(json["trusted_authority"], "CN=old lab");
  EXPECT_EQ(json["valid_until"], "2027-01-02 03:04:05 UTC");
  EXPECT_EQ(Json::parse(WhoamiJson({}, "", {}))["connection"], Json({{"tls", false}}));
}

}  // namespace
}  // namespace coordd
