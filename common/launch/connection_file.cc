#include "common/launch/connection_file.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/atomic_file.h"
#include "common/base/json_member.h"
#include "common/base/own_file.h"
#include "common/base/status_macros.h"
#include "common/grpc/certs.h"

namespace coordd {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kSuffix = ".json";
constexpr absl::string_view kKind = "connection file";
// Coordds of one user on one machine: some; a directory with more entries than this is cut.
constexpr size_t kMaxConnections = 1024;

absl::Status CheckOwnedDirectory(const std::string& path) {
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0) {
    return absl::UnavailableError(
        absl::StrCat("directory ", path, " cannot be used: ", std::strerror(errno)));
  }
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a directory"));
  }
  if (found.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "directory ", path, " belongs to user ", found.st_uid, "; expected ours, ", geteuid()));
  }
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("directory ", path, " can be written by others (chmod 700 ", path, ")"));
  }
  return absl::OkStatus();
}

// Sorted.
std::vector<std::string> ConnectionFilesIn(const std::string& directory) {
  std::vector<std::string> paths;
  if (DIR* listing = opendir(directory.c_str()); listing != nullptr) {
    while (const dirent* entry = readdir(listing)) {
      if (absl::EndsWith(entry->d_name, kSuffix) && paths.size() < kMaxConnections)
        paths.push_back(absl::StrCat(directory, "/", entry->d_name));
    }
    closedir(listing);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::StatusOr<Connection> ParseConnection(const std::string& path, const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || TextMember(json, "listen").empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kKind, " ", path, " holds no JSON object with a \"listen\" address"));
  }
  Connection connection;
  connection.listen = TextMember(json, "listen");
  connection.http = TextMember(json, "http");
  connection.version = TextMember(json, "version");
  if (const auto pid = json.find("pid"); pid != json.end() && pid->is_number_integer())
    connection.pid = pid->get<int>();
  if (const auto tls = json.find("tls"); tls != json.end() && tls->is_object())
    connection.tls = {TextMember(*tls, "cert"), TextMember(*tls, "key"), TextMember(*tls, "ca")};
  return connection;
}

bool IsAlive(int pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

}  // namespace

absl::StatusOr<std::string> ConnectionDirectory(const Environment& environment) {
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  // Jobs of a scheduler inherit /run/user/UID of a session that is not there.
  const bool is_there = runtime != environment.end() && !runtime->second.empty() &&
                        access(runtime->second.c_str(), W_OK | X_OK) == 0;
  const std::string path =
      is_there ? runtime->second + "/coordd" : absl::StrCat("/tmp/coordd-", geteuid());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(
        absl::StrCat("directory ", path, " cannot be made: ", std::strerror(errno)));
  }
  COORDD_RETURN_IF_ERROR(CheckOwnedDirectory(path));
  return path;
}

absl::Status WriteConnectionFile(const std::string& path, const Connection& connection) {
  // Whoever reads it is somewhere else.
  const auto absolute = [](const std::string& file) {
    return file.empty() ? file : std::filesystem::absolute(file).lexically_normal().string();
  };
  const Json json = {{"listen", connection.listen},
                     {"http", connection.http},
                     {"pid", connection.pid},
                     {"version", connection.version},
                     {"tls",
                      {{"cert", absolute(connection.tls.cert)},
                       {"key", absolute(connection.tls.key)},
                       {"ca", absolute(connection.tls.ca)}}}};
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return WriteFileAtomically(path, text, 0600);
}

absl::StatusOr<Connection> ReadConnectionFile(const std::string& path) {
  COORDD_ASSIGN_OR_RETURN(const std::string text, ReadOwnFile(path, kKind));
  return ParseConnection(path, text);
}

std::vector<Connection> LiveConnections(const std::string& directory, absl::Status* unusable) {
  std::vector<Connection> live;
  for (const std::string& path : ConnectionFilesIn(directory)) {
    absl::StatusOr<Connection> connection = ReadConnectionFile(path);
    if (!connection.ok()) {
      // One that has gone meanwhile is no fault.
      if (unusable != nullptr && !absl::IsNotFound(connection.status()))
        unusable->Update(connection.status());
      continue;
    }
    if (IsAlive(connection->pid)) {
      live.push_back(*std::move(connection));
    } else {
      unlink(path.c_str());
    }
  }
  return live;
}

std::vector<Connection> ServiceConnections(const std::string& directory,
                                           const std::string& certificates) {
  struct stat found = {};
  if (lstat(directory.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) ||
      (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return {};
  }
  std::vector<Connection> live;
  for (const std::string& path : ConnectionFilesIn(directory)) {
    const absl::StatusOr<std::string> text = ReadFileOf(found.st_uid, path, kKind);
    if (!text.ok()) continue;
    absl::StatusOr<Connection> connection = ParseConnection(path, *text);
    if (!connection.ok() || !IsAlive(connection->pid)) continue;
    if (connection->tls.enabled() && connection->tls.cert.empty()) {
      const TlsFiles files = OperatorTlsFiles(certificates);
      if (files.enabled()) connection->tls = files;
    }
    live.push_back(*std::move(connection));
  }
  return live;
}

}  // namespace coordd
