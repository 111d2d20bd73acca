// A request of HTTP/1, as far as a read-only server needs to know it.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace coordd {

struct HttpRequest {
  std::string method;
  std::string path;   // not decoded; "/metrics"
  std::string query;  // what stands behind '?', not decoded
  // The host of the target, or else of the header Host, as it was sent.
  std::optional<std::string> host;
  std::string authorization = "";  // the header; empty: there is none, or more than one
};

inline constexpr size_t kMaxHttpRequestBytes = 16384;

// PURE. Reads the head of a request from the beginning of `bytes`. RFC 9112; absl::nullopt where
// more bytes are needed, an HttpRequest without a method where it can become none.
std::optional<HttpRequest> ParseHttpRequest(absl::string_view bytes);

// Whether a browser that was sent to a server on loopback by somebody else's page says so: `host`,
// with or without a port, names neither loopback nor `own`, the name at which the server was told
// to listen. (DNS rebinding: the page's name, resolved to 127.0.0.1.)
bool NamesAnotherHost(absl::string_view host, absl::string_view own);

}  // namespace coordd
