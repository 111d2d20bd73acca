// The smallest HTTP client: one request, the whole answer as text.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "common/net/address.h"

namespace coordd {

// A connected socket to 127.0.0.1:port that gives up after 10 s of silence; -1 when refused.
inline int ConnectLoopback(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience = {10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

// Sends `request` as it is and reads until the other side closes. Empty: no connection.
inline std::string HttpExchange(uint16_t port, const std::string& request) {
  const int fd = ConnectLoopback(port);
  if (fd < 0) return "";
  [[maybe_unused]] const ssize_t sent = send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char part[65536];
  for (ssize_t n; (n = recv(fd, part, sizeof(part), 0)) > 0;)
    answer.append(part, static_cast<size_t>(n));
  close(fd);
  return answer;
}

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string head, body;
};

inline HttpAnswer HttpGet(const HostPort& server, const std::string& path,
                          const std::string& method = "GET") {
  const std::string text =
      HttpExchange(server.port, method + " " + path + " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
  HttpAnswer answer;
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos) return answer;
  answer.head = text.substr(0, end);
  answer.body = text.substr(end + 4);
  answer.status = std::stoi(answer.head.substr(answer.head.find(' ') + 1));
  return answer;
}

}  // namespace coordd
