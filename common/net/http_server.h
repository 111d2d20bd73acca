// A read-only HTTP server for metrics, health and status. (io)
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/address.h"
#include "common/net/client_stream.h"
#include "common/net/http_request.h"

namespace coordd {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  int retry_after_s = 0;  // 0: nothing is said of it
};

// Called on one of the server's own threads, several at once: handlers are thread-safe and do not
// block for long. `query`: what stands behind '?', not decoded.
using HttpHandler = std::function<HttpResponse(const std::string& query)>;

// Why somebody is closed, or not answered.
enum class HttpRefusal {
  kAddressFull,   // his address begins too many TLS handshakes (HandshakeLimit)
  kAnswers,       // answers that wait to be read fill answer_bytes_max
  kFull,          // all places are taken, and he makes room, or finds none
  kPlaintext,     // he speaks no TLS where it is wanted; he is told so
  kHandshake,     // the TLS handshake has failed, or was not gone on with
  kToken,         // may_ask takes not what he has sent as Authorization
  kUnauthorized,  // may_ask refuses him, who has sent none
};
inline constexpr HttpRefusal kHttpRefusals[] = {HttpRefusal::kAddressFull, HttpRefusal::kAnswers,
                                                HttpRefusal::kFull,        HttpRefusal::kPlaintext,
                                                HttpRefusal::kHandshake,   HttpRefusal::kToken,
                                                HttpRefusal::kUnauthorized};

inline constexpr size_t kHttpAnswerBytesMax = size_t{64} << 20;

struct HttpServerOptions {
  HostPort address;                // port 0 picks one
  std::optional<PortRange> ports;  // ... of these
  // How many connections are open at once. Whoever has not sent a request, or does not take his
  // answer, makes room for the next one: on loopback after 100 ms, elsewhere the address that holds
  // the most places at once.
  size_t connections_max = 64;
  // How many bytes all answers have at once that wait to be read, without those as small as a
  // request, which always pass. One that would be more has the place of those that have waited for
  // their readers for `answer_undisturbed`, whose connections end; else its client is told 503.
  // Alone an answer has any size.
  size_t answer_bytes_max = kHttpAnswerBytesMax;
  absl::Duration answer_undisturbed = absl::Seconds(1);
  // What is between a socket and HTTP, such as TLS. Empty: nothing; a null stream: the connection
  // is closed. Called once a client has begun a TLS handshake, as often as HandshakeLimit lets an
  // address begin one.
  std::function<std::unique_ptr<ClientStream>(int fd)> stream = {};
  // Whether who asks so, over a stream that `stream` has made, may; on the server's own thread. Not
  // OK: 401, with the message. Empty: everybody may. `from`:
  // PeerAddress::block.
  std::function<absl::Status(const ClientStream& stream, const std::string& from,
                             const HttpRequest& request)>
      may_ask = {};
  // Paths whose requests are answered before others, on a thread that is theirs alone, too.
  std::vector<std::string> urgent = {};
  // Sets of other paths. Of a set one is answered at a time, and those that wait for it take none
  // of the threads.
  std::vector<std::set<std::string>> one_at_a_time = {};
  // Tells of each refusal, on the server's own thread. `peer`: with its port. `said`: of kHandshake
  // ClientStream::failure or why else, of kToken and kUnauthorized "PATH: " and the message of
  // may_ask, of kFull and kAnswers why this one.
  std::function<void(HttpRefusal why, const std::string& peer, const std::string& said)> refused =
      {};
};

// GET and HEAD only (405 otherwise), exact paths (404 otherwise, listing what there is), one
// request for each connection, of at most 16 KiB. A request has 2 s to come, an answer 10 s to be
// taken; neither holds up others. At most 4 handlers run at once, and one more of
// urgent paths. Bound to loopback, it answers
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
