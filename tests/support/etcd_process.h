// A real etcd of the test's own: one member, on loopback, ended with the object.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/address.h"
#include "etcd/v3/etcd.pb.h"
#include "server/store/etcd_client.h"
#include "tests/support/temp_directory.h"

namespace coordd {

class EtcdProcess {
 public:
  // Null, with the reason in `why`: there is no etcd here.
  static std::unique_ptr<EtcdProcess> Start(std::string* why) {
    if (std::system("command -v etcd >/dev/null 2>&1") != 0) {
      *why = "no etcd is installed here (Debian: etcd-server): --store etcd: is not tested";
      return nullptr;
    }
    // Its ports are free when they are picked; another process may take them before it does.
    for (int attempt = 0; attempt < 5; ++attempt) {
      std::unique_ptr<EtcdProcess> etcd(new EtcdProcess(FreePort(), FreePort()));
      if (etcd->AwaitReady()) return etcd;
      *why = etcd->Log();
    }
    *why = absl::StrCat("etcd does not start: ", *why);
    return nullptr;
  }
  ~EtcdProcess() { End(); }
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  HostPort address() const { return {"127.0.0.1", client_port_}; }
  // No thread of it runs when this returns.
  void Pause() const {
    kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);
  }
  void Continue() const { kill(pid_, SIGCONT); }

 private:
  EtcdProcess(uint16_t client_port, uint16_t peer_port) : client_port_(client_port) {
    const std::string client = absl::StrCat("http://127.0.0.1:", client_port);
    const std::string peer = absl::StrCat("http://127.0.0.1:", peer_port);
    // Short elections, since the shortest lease that etcd grants is one and a half of them.
    const std::vector<std::string> arguments = {"etcd",
                                                "--data-dir",
                                                directory_ / "data",
                                                "--listen-client-urls",
                                                client,
                                                "--advertise-client-urls",
                                                client,
                                                "--listen-peer-urls",
                                                peer,
                                                "--initial-advertise-peer-urls",
                                                peer,
                                                "--initial-cluster",
                                                "default=" + peer,
                                                "--heartbeat-interval",
                                                "10",
                                                "--election-timeout",
                                                "100"};
    std::vector<char*> argv;
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const std::string log = directory_ / "log";
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(fd, 1);
    dup2(fd, 2);
    execvp("etcd", argv.data());
    _exit(127);
  }

  static uint16_t FreePort() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    close(fd);
    return ntohs(address.sin_port);
  }

  bool Accepts() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(client_port_);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
    close(fd);
    return connected;
  }

  bool AwaitReady() {
    const auto client = EtcdClient::Make({address()}, {});
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    const bool ready = AwaitReady(**client, pidfd);
    close(pidfd);
    return ready;
  }
  bool AwaitReady(EtcdClient& client, int pidfd) {
    etcdserverpb::RangeRequest request;
    request.set_key("x");
    for (int tries = 0; tries < 600; ++tries) {
      // gRPC waits longer and longer between its tries; a socket of our own does not.
      if (Accepts()) said_ = client.Range(request, absl::Seconds(2)).status();
      if (said_.ok()) return true;
      if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
        pid_ = 0;
        return false;
      }
      pollfd end = {.fd = pidfd, .events = POLLIN, .revents = 0};
      poll(&end, 1, 50);  // ms: it has ended, or may listen by now
    }
    return false;
  }
  void End() {
    if (pid_ <= 0) return;
    kill(pid_, SIGCONT);
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  std::string Log() const {
    return absl::StrCat(said_.ToString(), "; ", FileText(directory_ / "log"));
  }

  const uint16_t client_port_;
  TempDirectory directory_{"/dev/shm"};
  pid_t pid_ = 0;
  absl::Status said_ = absl::UnavailableError("nobody listens");
};

}  // namespace coordd
