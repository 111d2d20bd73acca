// The bytes of an answer of HTTP/1.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "common/net/http_request.h"
#include "common/net/http_server.h"

namespace coordd {

// PURE. Head and, `with_body`, what stands behind it.
std::string WrittenAnswer(const HttpResponse& response, bool with_body);

// PURE. What is said of a request that is none of HTTP's, or not to be answered. `loopback`: the
// host that this listens on, if it is of loopback.
std::optional<HttpResponse> RefusedByForm(const HttpRequest& request, const std::string& loopback);

// PURE. To whom there is no room for an answer beside those that others do not read.
HttpResponse TooManyAnswers(size_t bytes_max);

}  // namespace coordd
