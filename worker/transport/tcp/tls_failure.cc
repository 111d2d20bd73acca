#include "worker/transport/tcp/tls_failure.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coordd {
namespace {

constexpr absl::string_view kExpected = ", expected TLS 1.3 with the key of this generation";

// Empty: not known.
absl::string_view ReasonText(int reason) {
  switch (reason) {
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
      return "it has sent HTTP";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_RECORD_TOO_SMALL:
    case SSL_R_BAD_RECORD_TYPE:
      return "it has sent plain bytes";
    case SSL_R_LENGTH_MISMATCH:
    case SSL_R_BAD_LENGTH:
    case SSL_R_BAD_EXTENSION:
    case SSL_R_BAD_PACKET:
    case SSL_R_LENGTH_TOO_SHORT:
    case SSL_R_LENGTH_TOO_LONG:
    case SSL_R_EXCESSIVE_MESSAGE_SIZE:
    case SSL_R_NO_CIPHERS_SPECIFIED:
      return "it has sent a hello of TLS that is wrong in itself";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_WRONG_SSL_VERSION:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
      return "it speaks an old TLS";
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return "it has another key";
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
    case SSL_R_MISSING_SIGALGS_EXTENSION:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_TLSV13_ALERT_MISSING_EXTENSION:
      return "it speaks TLS with no key of this generation";
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return "it has shown a certificate, which no rank has";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "it wants a certificate of an authority that it knows";
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return "it finds a certificate that has expired";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "it wants a certificate";
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return "it has ended the connection in the middle of its hello";
    default:
      return "";
  }
}

}  // namespace

std::string HandshakeFailure(unsigned long error) {
  const int reason = ERR_GET_REASON(error);
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) return std::string(ReasonText(reason));
  if (const absl::string_view known = ReasonText(reason); !known.empty())
    return absl::StrCat(known, kExpected);
  const char* const said = ERR_reason_error_string(error);
  return absl::StrCat("its TLS handshake fails (", said == nullptr ? "no reason" : said, ")",
                      kExpected);
}

}  // namespace coordd
