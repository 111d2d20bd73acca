// What is said of a TLS handshake that has failed.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "common/grpc/grpc_log.h"

namespace coordd {
namespace {

TEST(HandshakeFailureText, SaysWhatTheOtherSideIs) {
  const std::pair<const char*, const char*> cases[] = {
      {"error:0A00010B:SSL routines::wrong version number",
       "it has sent plain bytes, expected TLS 1.3"},
      {"error:0A00009C:SSL routines::http request", "it has sent HTTP, expected TLS 1.3"},
      {"error:0A00009B:SSL routines::https proxy request", "it has sent HTTP, expected TLS 1.3"},
      {"error:0A000102:SSL routines::unsupported protocol", "it speaks no TLS 1.3"},
      {"error:0A00018C:SSL routines::version too low", "it speaks no TLS 1.3"},
      {"error:0A000086:SSL routines::certificate verify failed: certificate has expired",
       "its certificate has expired"},
      {"error:0A000086:SSL routines::certificate verify failed: self-signed certificate",
       "its certificate is not of the authority in --tls-ca"},
      {"error:0A000086:SSL routines::certificate verify failed: unable to get local issuer "
       "certificate",
       "its certificate is not of the authority in --tls-ca"},
      {"error:0A000086:SSL routines::certificate verify failed",
       "its certificate is not of the authority in --tls-ca"},
      {"error:0A000086:SSL routines::certificate verify failed: unhandled critical extension",
       "its certificate, or an authority between it and --tls-ca, will not do: unhandled critical "
       "extension"},
      {"error:0A000086:SSL routines::certificate verify failed: path length constraint exceeded",
       "its certificate, or an authority between it and --tls-ca, will not do: path length "
       "constraint exceeded"},
      {"error:0A000086:SSL routines::certificate verify failed: unsuitable certificate purpose",
       "its certificate, or an authority between it and --tls-ca, will not do: unsuitable "
       "certificate purpose (expected one for clients and, of an authority, for signing)"},
      {"error:0A000418:SSL routines::tlsv1 alert unknown ca",
       "it does not take our certificate: its --tls-ca is of another authority"},
      {"error:0A000416:SSL routines::sslv3 alert certificate unknown",
       "it does not take our certificate"},
      {"error:0A000415:SSL routines::sslv3 alert certificate expired",
       "it finds that our certificate has expired"}};
  for (const auto& [said, text] : cases) EXPECT_EQ(HandshakeFailureText(said), text) << said;
}

TEST(HandshakeFailureText, LeavesTheNumbersOutOfWhatIsNotKnown) {
  EXPECT_EQ(HandshakeFailureText("error:0A00009F:SSL routines::length mismatch"),
            "its TLS handshake fails (length mismatch)");
  EXPECT_EQ(HandshakeFailureText("its certificate is an authority's"),
            "its certificate is an authority's");
}

}  // namespace
}  // namespace coordd
