// The bytes of an answer of HTTP/1.
#pragma once

#include <string>

#include "common/net/http_server.h"

namespace coordd {

// PURE. Head and, `with_body`, what stands behind it.
std::string WrittenAnswer(const HttpResponse& response, bool with_body);

}  // namespace coordd
