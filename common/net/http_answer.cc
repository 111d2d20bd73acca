#include "common/net/http_answer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coordd {
namespace {

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

// What a browser may do with an answer: a page has its scripts and styles in itself, asks its own
// server and nobody else, and stands in nobody's frame.
constexpr absl::string_view kPolicy =
    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

}  // namespace

std::string WrittenAnswer(const HttpResponse& response, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
                      "\r\nContent-Type: ", response.content_type,
                      "\r\nContent-Length: ", response.body.size(), "\r\n", kPolicy,
                      response.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
                      response.status == 405 ? "Allow: GET, HEAD\r\n" : "",
                      "Connection: close\r\n\r\n", with_body ? response.body : "");
}

}  // namespace coordd
