// A read-only HTTP server for metrics, health and status. (io)
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/address.h"
#include "common/net/client_stream.h"
#include "common/net/http_request.h"

namespace coordd {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Called on one of the server's own threads, several at once: handlers are thread-safe and do not
// block for long. `query`: what stands behind '?', not decoded.
using HttpHandler = std::function<HttpResponse(const std::string& query)>;

struct HttpServerOptions {
  HostPort address;                // port 0 picks one
  std::optional<PortRange> ports;  // ... of these
  // How many connections are open at once. Whoever has not sent a request makes room for the next
  // one.
  size_t connections_max = 64;
  // What is between a socket and HTTP, such as TLS. Empty: nothing; a null stream: the connection
  // is closed.
  std::function<std::unique_ptr<ClientStream>(int fd)> stream = {};
  // Whether who asks so, over a stream that `stream` has made, may; on the server's own thread. Not
  // OK: 401, with the message. Empty: everybody may.
  std::function<absl::Status(const ClientStream& stream, const HttpRequest& request)> may_ask = {};
};

// GET and HEAD only (405 otherwise), exact paths (404 otherwise, listing what there is), one
// request for each connection, of at most 16 KiB. A request has 2 s to come, an answer 10 s to be
// taken; neither holds up others. At most 4 handlers run at once. Bound to loopback, it answers
// only who asks for loopback (421 otherwise): a browser that was sent here by a page does not.
class HttpServer {
 public:
  // UNAVAILABLE: the address cannot be had; in one sentence, e.g. the port is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> StartWith(
      const HttpServerOptions& options, const std::map<std::string, HttpHandler>& handlers);
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HostPort& address, const std::optional<PortRange>& ports,
      const std::map<std::string, HttpHandler>& handlers) {
    return StartWith(HttpServerOptions{.address = address, .ports = ports}, handlers);
  }
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HostPort& address, const std::map<std::string, HttpHandler>& handlers) {
    return StartWith(HttpServerOptions{.address = address, .ports = std::nullopt}, handlers);
  }
  virtual ~HttpServer() = default;  // waits for handlers that run

  virtual HostPort address() const = 0;  // with the port that was picked
};

}  // namespace coordd
