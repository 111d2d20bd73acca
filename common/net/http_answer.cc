#include "common/net/http_answer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/utf8.h"

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

std::optional<HttpResponse> RefusedByForm(const HttpRequest& request, const std::string& loopback) {
  if (request.method.empty())
    return HttpResponse{.status = 400, .body = "400: expected a request of HTTP/1.1\n"};
  if (!loopback.empty() && request.host.has_value() && NamesAnotherHost(*request.host, loopback)) {
    return HttpResponse{
        .status = 421,
        .body = absl::StrCat("421: found Host: ", PrintableText(request.host->substr(0, 300)),
                             ", expected localhost or 127.0.0.1: this listens on loopback\n")};
  }
  if (request.method != "GET" && request.method != "HEAD")
    return HttpResponse{.status = 405, .body = "405: only GET and HEAD are served here\n"};
  return std::nullopt;
}

HttpResponse TooManyAnswers(size_t bytes_max) {
  return {.status = 503,
          .body = absl::StrCat("503: answers that others do not read have ", bytes_max,
                               " bytes here: ask again in a second\n"),
          .retry_after_s = 1};
}

std::string WrittenAnswer(const HttpResponse& response, bool with_body) {
  return absl::StrCat(
      "HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
      "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
      "\r\n", kPolicy, response.status == 401 ? "WWW-Authenticate: Bearer\r\n" : "",
      response.retry_after_s > 0 ? absl::StrCat("Retry-After: ", response.retry_after_s, "\r\n")
                                 : "",
      response.status == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n",
      with_body ? response.body : "");
}

}  // namespace coordd
