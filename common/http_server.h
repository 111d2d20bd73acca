// A read-only HTTP server for metrics, health and status, over CivetWeb. (io)
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/address.h"

namespace coordd {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Called on one of the server's own threads, several at once: handlers are thread-safe and do not
// block for long. `query`: what stands behind '?', not decoded.
using HttpHandler = std::function<HttpResponse(const std::string& query)>;

// GET and HEAD only (405 otherwise), exact paths (404 otherwise, listing what there is), requests
// over 16 KiB or slower than 10 s are dropped; at most 4 requests at once, 64 waiting.
class HttpServer {
 public:
  // Listens on `address`; port 0 picks one, of `ports` when they are given. UNAVAILABLE: in one
  // sentence, e.g. the port is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HostPort& address, const std::optional<PortRange>& ports,
      std::map<std::string, HttpHandler> handlers);
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HostPort& address, std::map<std::string, HttpHandler> handlers) {
    return Start(address, std::nullopt, std::move(handlers));
  }
  virtual ~HttpServer() = default;  // stops within some 10 ms

  virtual HostPort address() const = 0;  // with the port that was picked
};

}  // namespace coordd
