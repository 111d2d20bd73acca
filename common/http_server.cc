// CivetWeb's C interface: its C++ face throws. The master thread of CivetWeb 1.15 polls with a
// quantum of two seconds, so stopping it connects to its own port to wake it.
#include "common/http_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/thread.h"

namespace coordd {
namespace {

constexpr char kThreads[] = "4";
constexpr char kWaitingConnections[] = "64";
constexpr char kMaxRequestBytes[] = "16384";
constexpr char kRequestTimeoutMs[] = "10000";

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

// A numeric address for a name, since CivetWeb binds numbers only.
absl::StatusOr<std::string> Resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("HTTP host ", host, " does not resolve: ", gai_strerror(error)));
  }
  char text[NI_MAXHOST] = "";
  getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  return std::string(text);
}

// mg_error_data::code is a pointer up to CivetWeb 1.15 (Debian 12), and a number since.
[[maybe_unused]] void PointAt(unsigned* code, unsigned** member) { *member = code; }
[[maybe_unused]] void PointAt(unsigned*, unsigned*) {}

class CivetHttpServer final : public HttpServer {
 public:
  explicit CivetHttpServer(std::map<std::string, HttpHandler> handlers)
      : handlers_(std::move(handlers)) {}

  ~CivetHttpServer() override {
    if (context_ == nullptr) return;
    // Each connection wakes the master's poll once; one of them comes after mg_stop has set its
    // flag.
    std::thread waker = StartThread("http-stop", [this] {
      MutexLock lock(&mu_);
      while (!stopped_) {
        TouchOwnPort();
        stopped_changed_.WaitFor(&mu_, absl::Milliseconds(5));
      }
    });
    mg_stop(context_);
    {
      MutexLock lock(&mu_);
      stopped_ = true;
    }
    stopped_changed_.NotifyAll();
    waker.join();
  }

  absl::Status Listen(const HostPort& address) {
    COORDD_ASSIGN_OR_RETURN(numeric_.host, Resolve(address.host));
    numeric_.port = address.port;
    const std::string ports = numeric_.ToString();
    const char* options[] = {"listening_ports", ports.c_str(), "num_threads", kThreads,
                             "connection_queue", kWaitingConnections, "max_request_size",
                             kMaxRequestBytes, "request_timeout_ms", kRequestTimeoutMs,
                             // A kept connection would hold one of four threads.
                             "enable_keep_alive", "no", "tcp_nodelay", "1", nullptr};
    mg_callbacks callbacks = {};
    callbacks.begin_request = &CivetHttpServer::OnRequest;
    callbacks.log_message = &CivetHttpServer::OnLog;
    callbacks.init_thread = &CivetHttpServer::OnThread;
    unsigned code = 0;
    char text[256] = "";
    mg_error_data error = {};
    PointAt(&code, &error.code);
    error.text = text;
    error.text_buffer_size = sizeof(text);
    mg_init_data init = {&callbacks, this, options};
    static const unsigned library [[maybe_unused]] = mg_init_library(MG_FEATURES_FILES);
    // CivetWeb's threads inherit the signal mask of the one that starts them: StartThread's blocks
    // what main handles.
    StartThread("http-start", [&] { context_ = mg_start2(&init, &error); }).join();
    if (context_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot listen for HTTP on ", address.ToString(),
                                                 ": the port is in use, or the address is not ",
                                                 "this machine's (", text, ")"));
    }
    mg_server_port port = {};
    if (mg_get_server_ports(context_, 1, &port) == 1)
      numeric_.port = static_cast<uint16_t>(port.port);
    address_ = {address.host, numeric_.port};
    return absl::OkStatus();
  }

  HostPort address() const override { return address_; }

 private:
  static int OnRequest(mg_connection* connection) {
    const mg_request_info* request = mg_get_request_info(connection);
    auto* self = static_cast<CivetHttpServer*>(request->user_data);
    const absl::string_view method = request->request_method;
    HttpResponse response;
    if (method != "GET" && method != "HEAD") {
      response.status = 405;
      response.body = "405: only GET and HEAD are served here\n";
    } else {
      response = self->Answer(request->local_uri_raw != nullptr ? request->local_uri_raw : "",
                              request->query_string != nullptr ? request->query_string : "");
    }
    const std::string head = absl::StrCat(
        "HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
        "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
        "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
        response.status == 405 ? "Allow: GET, HEAD\r\n" : "", "Connection: close\r\n\r\n");
    mg_write(connection, head.data(), head.size());
    if (method != "HEAD") mg_write(connection, response.body.data(), response.body.size());
    return response.status;  // anything but 0: answered
  }

  HttpResponse Answer(const std::string& path, const std::string& query) const {
    const auto handler = handlers_.find(path);
    if (handler != handlers_.end()) return handler->second(query);
    HttpResponse response;
    response.status = 404;
    response.body = absl::StrCat(
        "404: nothing at this path; there is ",
        absl::StrJoin(handlers_, ", ",
                      [](std::string* out, const auto& entry) { out->append(entry.first); }),
        "\n");
    return response;
  }

  static int OnLog(const mg_connection*, const char* message) {
    COORDD_LOG(kDebug, "http: ", message);
    return 1;  // not to a file
  }

  static void* OnThread(const mg_context*, int type) {
    pthread_setname_np(pthread_self(), type == 0 ? "http-accept" : "metrics-http");
    return nullptr;
  }

  void TouchOwnPort() const {
    // The unspecified address (0.0.0.0, ::) connects to this machine.
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (getaddrinfo(numeric_.host.c_str(), std::to_string(numeric_.port).c_str(), &hints, &found) !=
        0) {
      return;
    }
    const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
      [[maybe_unused]] const int ignored = connect(fd, found->ai_addr, found->ai_addrlen);
      close(fd);
    }
    freeaddrinfo(found);
  }

  // Constant after Listen.
  const std::map<std::string, HttpHandler> handlers_;
  mg_context* context_ = nullptr;
  HostPort numeric_;
  HostPort address_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar stopped_changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const HostPort& address, const std::optional<PortRange>& ports,
    std::map<std::string, HttpHandler> handlers) {
  if (address.port != 0 || !ports.has_value()) {
    auto server = std::make_unique<CivetHttpServer>(std::move(handlers));
    COORDD_RETURN_IF_ERROR(server->Listen(address));
    return server;
  }
  for (int port = ports->first; port <= ports->last; ++port) {
    auto server = std::make_unique<CivetHttpServer>(handlers);
    if (server->Listen({address.host, static_cast<uint16_t>(port)}).ok()) return server;
  }
  return absl::UnavailableError(absl::StrCat("cannot listen for HTTP on ", address.host, ": all ",
                                             ports->size(), " ports of ", ports->ToString(),
                                             " are in use"));
}

}  // namespace coordd
