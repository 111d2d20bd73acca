#include "common/net/http_request.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/net/address.h"

namespace coordd {
namespace {

// RFC 9110, 5.6.2.
bool IsTokenCharacter(char c) {
  constexpr absl::string_view kOthers = "!#$%&'*+-.^_`|~";
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         kOthers.find(c) != absl::string_view::npos;
}

bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsTokenCharacter);
}

// "HTTP/1.0", "HTTP/1.1", and what may follow.
bool IsVersion(absl::string_view text) {
  return absl::ConsumePrefix(&text, "HTTP/1.") && text.size() == 1 &&
         absl::ascii_isdigit(static_cast<unsigned char>(text[0]));
}

bool IsGraph(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

// Takes "http://HOST" off the front of a target, as it is sent to proxies, and returns HOST; RFC
// 9112, 3.2.2: it counts instead of the header's. absl::nullopt: there is none.
std::optional<std::string> TakeAuthority(absl::string_view& target) {
  constexpr absl::string_view kScheme = "http://";
  if (!absl::StartsWithIgnoreCase(target, kScheme)) return std::nullopt;
  const absl::string_view rest = target.substr(kScheme.size());
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  target = rest.substr(end);
  return std::string(rest.substr(0, end));
}

// Where the head ends: behind an empty line. npos: not yet.
size_t HeadEnd(absl::string_view bytes) {
  for (size_t lf = bytes.find('\n'); lf != absl::string_view::npos; lf = bytes.find('\n', lf + 1)) {
    const absl::string_view next = bytes.substr(lf + 1, 2);
    if (absl::StartsWith(next, "\n") || next == "\r\n") return lf + 1;
  }
  return absl::string_view::npos;
}

// The line at the front of `rest`, without its end, which is taken off; RFC 9112, 2.2 lets a lone
// LF end it.
absl::string_view TakeLine(absl::string_view& rest) {
  const size_t end = rest.find('\n');
  absl::string_view line = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

}  // namespace

std::optional<HttpRequest> ParseHttpRequest(absl::string_view bytes) {
  const HttpRequest none;
  // Behind the body of a request some clients send a line's end too many (RFC 9112, 2.2).
  if (bytes == "\r") return std::nullopt;
  if (!absl::ConsumePrefix(&bytes, "\r\n")) absl::ConsumePrefix(&bytes, "\n");
  // What cannot become a method is not waited for.
  if (!bytes.empty() && !IsTokenCharacter(bytes[0])) return none;
  const size_t end = HeadEnd(bytes);
  if (end == absl::string_view::npos) return std::nullopt;
  absl::string_view rest = bytes.substr(0, end);
  const absl::string_view line = TakeLine(rest);
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == absl::string_view::npos || first == last) return none;
  HttpRequest request;
  request.method = std::string(line.substr(0, first));
  absl::string_view target = line.substr(first + 1, last - first - 1);
  if (!IsToken(request.method) || target.empty() || !IsGraph(target) ||
      !IsVersion(line.substr(last + 1)))
    return none;
  const std::optional<std::string> authority = TakeAuthority(target);
  // Other methods have targets of other forms, and are refused whatever these are.
  const bool served = request.method == "GET" || request.method == "HEAD";
  if (served && !authority.has_value() && target[0] != '/') return none;
  const size_t question = target.find('?');
  request.path = std::string(target.substr(0, question));
  if (request.path.empty()) request.path = "/";
  if (question != absl::string_view::npos) request.query = std::string(target.substr(question + 1));
  size_t authorizations = 0;
  while (!rest.empty()) {
    const absl::string_view header = TakeLine(rest);
    const size_t colon = header.find(':');
    if (colon == absl::string_view::npos || !IsToken(header.substr(0, colon))) return none;
    const absl::string_view name = header.substr(0, colon);
    if (absl::EqualsIgnoreCase(name, "authorization")) {
      request.authorization = std::string(absl::StripAsciiWhitespace(header.substr(colon + 1)));
      ++authorizations;
    }
    if (!absl::EqualsIgnoreCase(name, "host")) continue;
    if (request.host.has_value()) return none;  // RFC 9112, 3.2
    request.host = std::string(absl::StripAsciiWhitespace(header.substr(colon + 1)));
  }
  if (authorizations > 1) request.authorization.clear();
  if (authority.has_value()) request.host = *authority;
  return request;
}

namespace {

// The name in "name", "name:80", "[::1]" and "[::1]:80", with a final dot or without; empty: `host`
// is none of these.
absl::string_view NameOf(absl::string_view host) {
  absl::string_view name, port;
  if (absl::ConsumePrefix(&host, "[")) {
    const size_t end = host.find(']');
    if (end == absl::string_view::npos) return "";
    name = host.substr(0, end);
    port = host.substr(end + 1);
    if (!absl::StrContains(name, ':')) return "";
  } else {
    name = host.substr(0, host.find(':'));
    port = host.substr(name.size());
    absl::ConsumeSuffix(&name, ".");
  }
  if (!port.empty() && port[0] != ':') return "";
  uint32_t number = 0;
  // "name:" is a name with the usual port (RFC 3986, 3.2.3).
  if (port.size() <= 1) return name;
  port.remove_prefix(1);
  const bool digits = std::all_of(port.begin(), port.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  return digits && absl::SimpleAtoi(port, &number) && number <= UINT16_MAX ? name : "";
}

}  // namespace

bool NamesAnotherHost(absl::string_view host, absl::string_view own) {
  const absl::string_view name = NameOf(host);
  absl::ConsumeSuffix(&own, ".");
  return name.empty() || (!IsLoopback(name) && !absl::EqualsIgnoreCase(name, own));
}

}  // namespace coordd
