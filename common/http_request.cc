#include "common/http_request.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/address.h"

namespace coordd {
namespace {

bool IsToken(absl::string_view text) {
  for (char c : text) {
    if (!absl::ascii_isalpha(static_cast<unsigned char>(c)) && c != '-') return false;
  }
  return !text.empty();
}

// "HTTP/1.0", "HTTP/1.1".
bool IsVersion(absl::string_view text) { return text == "HTTP/1.0" || text == "HTTP/1.1"; }

bool IsTarget(absl::string_view text) {
  if (text.empty() || text[0] != '/') return false;
  for (char c : text) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return false;
  }
  return true;
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
  // What cannot become a method is not waited for.
  if (!bytes.empty() && !absl::ascii_isalpha(static_cast<unsigned char>(bytes[0]))) return none;
  const size_t crlf = bytes.find("\r\n\r\n"), lf = bytes.find("\n\n");
  if (crlf == absl::string_view::npos && lf == absl::string_view::npos) return std::nullopt;
  absl::string_view rest = bytes.substr(0, crlf < lf ? crlf + 2 : lf + 1);
  const absl::string_view line = TakeLine(rest);
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == absl::string_view::npos || first == last) return none;
  const absl::string_view target = line.substr(first + 1, last - first - 1);
  if (!IsToken(line.substr(0, first)) || !IsTarget(target) || !IsVersion(line.substr(last + 1)))
    return none;
  HttpRequest request;
  request.method = std::string(line.substr(0, first));
  const size_t question = target.find('?');
  request.path = std::string(target.substr(0, question));
  if (question != absl::string_view::npos) request.query = std::string(target.substr(question + 1));
  while (!rest.empty()) {
    const absl::string_view header = TakeLine(rest);
    const size_t colon = header.find(':');
    if (colon == absl::string_view::npos) return none;
    if (!absl::EqualsIgnoreCase(header.substr(0, colon), "host")) continue;
    if (request.host.has_value()) return none;  // RFC 9112, 3.2
    request.host = std::string(absl::StripAsciiWhitespace(header.substr(colon + 1)));
  }
  return request;
}

bool NamesAnotherHost(absl::string_view host, absl::string_view own) {
  absl::string_view name = host;
  if (!name.empty() && name[0] == '[') {
    name = name.substr(1, name.find(']') - 1);
  } else {
    name = name.substr(0, name.rfind(':'));
  }
  return !IsLoopback(name) && !absl::EqualsIgnoreCase(name, own);
}

}  // namespace coordd
