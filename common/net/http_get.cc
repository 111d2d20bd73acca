#include "common/net/http_get.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/wire.h"

namespace coordd {

// Our servers close a connection behind the answer, so its end is the connection's.
absl::StatusOr<std::string> HttpGet(const HostPort& address, absl::string_view path,
                                    size_t bytes_max, absl::Time deadline, Clock& clock) {
  COORDD_ASSIGN_OR_RETURN(Wire wire, Wire::Connect(address, deadline, clock));
  wire.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", address.ToString(),
                         "\r\nConnection: close\r\n\r\n"));
  std::string answer;
  for (std::string more = wire.Receive(); !more.empty(); more = wire.Receive()) {
    answer += more;
    if (answer.size() > bytes_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(address.ToString(), path, " has more than ", bytes_max, " bytes"));
    }
  }
  const size_t head = answer.find("\r\n\r\n");
  if (!wire.closed() || head == std::string::npos) {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), path, " has not been answered in time"));
  }
  if (!absl::StartsWith(answer, "HTTP/1.1 200 ")) {
    return absl::UnavailableError(absl::StrCat(address.ToString(), path, " was answered with ",
                                               answer.substr(0, answer.find('\r'))));
  }
  return answer.substr(head + 4);
}

}  // namespace coordd
