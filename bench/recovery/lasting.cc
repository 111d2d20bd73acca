#include "bench/recovery/lasting.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"

namespace coordd::bench {

Directory::Directory() {
  std::error_code error;
  path_ = std::filesystem::temp_directory_path(error).string() + "/coordd-bench.XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) path_.clear();
}

Directory::~Directory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

namespace {

std::vector<std::string> CommandOf(const std::string& listen) {
  return {BesideUs("coordd"),
          "--listen",
          listen,
          "--http",
          "off",
          "--log-level",
          "error",
          "--exit-with",
          absl::StrCat(getpid()),
          "--connection-file",
          ""};
}

// A port of loopback that nobody has at the moment.
absl::StatusOr<std::string> FreeAddress() {
  const OwnedFd picked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (picked.get() < 0 || bind(picked.get(), generic, size) != 0 ||
      getsockname(picked.get(), generic, &size) != 0)
    return absl::UnavailableError(absl::StrCat("no port on 127.0.0.1: ", std::strerror(errno)));
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerProcess>> StartLasting(const std::string& listen,
                                                            const std::string& state) {
  std::vector<std::string> command = CommandOf(listen);
  command.insert(command.end(), {"--store", absl::StrCat("sqlite:", state)});
  return ServerProcess::Start(std::move(command));
}

absl::StatusOr<std::unique_ptr<MortalCoordd>> MortalCoordd::Start(const std::string& etcd,
                                                                  absl::Duration store_lease) {
  auto coordd = absl::WrapUnique(new MortalCoordd());
  MortalCoordd& c = *coordd;
  c.has_standby_ = !etcd.empty();
  if (c.has_standby_) {
    c.store_ = {"--store", absl::StrCat("etcd:", etcd, "/coordd-bench-", getpid()), "--store-lease",
                absl::FormatDuration(store_lease)};
  } else if (c.directory_.path().empty()) {
    return absl::UnavailableError("no directory for coordd's state");
  } else {
    c.store_ = {"--store", absl::StrCat("sqlite:", c.directory_.path(), "/state")};
  }
  COORDD_ASSIGN_OR_RETURN(c.leads_at_, FreeAddress());
  COORDD_ASSIGN_OR_RETURN(c.leader_, ServerProcess::Start(c.Command(c.leads_at_)));
  c.addresses_ = c.leads_at_;
  if (!c.has_standby_) return coordd;
  COORDD_ASSIGN_OR_RETURN(c.stands_by_at_, FreeAddress());
  absl::StrAppend(&c.addresses_, ",", c.stands_by_at_);
  COORDD_RETURN_IF_ERROR(c.Prepare());
  return coordd;
}

std::vector<std::string> MortalCoordd::Command(const std::string& listen) const {
  std::vector<std::string> command = CommandOf(listen);
  command.insert(command.end(), store_.begin(), store_.end());
  if (has_standby_) command.push_back("--standby");
  return command;
}

absl::Status MortalCoordd::Kill() {
  leader_.reset();
  if (!has_standby_) {
    COORDD_ASSIGN_OR_RETURN(leader_, ServerProcess::Start(Command(leads_at_)));
    return absl::OkStatus();
  }
  COORDD_RETURN_IF_ERROR(standby_->AwaitReady());
  leader_ = std::move(standby_);
  std::swap(leads_at_, stands_by_at_);
  return absl::OkStatus();
}

absl::Status MortalCoordd::Prepare() {
  if (!has_standby_ || standby_ != nullptr) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(standby_, ServerProcess::Launch(Command(stands_by_at_)));
  return absl::OkStatus();
}

}  // namespace coordd::bench
