#include "common/launch/rendezvous_file.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/atomic_file.h"
#include "common/base/json_member.h"
#include "common/base/own_file.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxAddresses = 16;

void ListDirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (DIR* listing = opendir(directory.c_str()); listing != nullptr) {
    while (readdir(listing) != nullptr) {
    }
    closedir(listing);
  }
}

}  // namespace

absl::Status MakePrivateDirectories(const std::string& path) {
  std::error_code error;
  std::string partial;
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    partial = partial.empty() || partial == "/" ? partial + part.string()
                                                : absl::StrCat(partial, "/", part.string());
    if (mkdir(partial.c_str(), 0700) != 0 && errno != EEXIST && errno != EISDIR &&
        access(partial.c_str(), F_OK) != 0) {
      return absl::UnavailableError(
          absl::StrCat("directory ", partial, " cannot be made: ", std::strerror(errno)));
    }
  }
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a directory"));
  if (found.st_uid != geteuid() || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("directory ", path, " belongs to user ", found.st_uid, " and has mode ",
                     absl::StrFormat("%o", found.st_mode & 0777u),
                     ", expected ours and writable by nobody else"));
  }
  return absl::OkStatus();
}

absl::Status WriteRendezvousFile(const std::string& path, const RendezvousRecord& record) {
  Json addresses = Json::array();
  for (const HostPort& address : record.addresses) addresses.push_back(address.ToString());
  const Json json = {
      {"instance", record.instance},
      {"addresses", std::move(addresses)},
      {"http", record.http},
      {"token_file", record.token_file},
      {"tls", {{"cert", record.tls.cert}, {"key", record.tls.key}, {"ca", record.tls.ca}}},
      {"pid", record.pid},
      {"host", record.host}};
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return WriteFileAtomically(path, text, 0600);
}

absl::StatusOr<RendezvousRecord> ReadRendezvousFile(const std::string& path) {
  ListDirectoryOf(path);
  COORDD_ASSIGN_OR_RETURN(const std::string text, ReadOwnFile(path, "rendezvous file"));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto addresses = json.is_object() ? json.find("addresses") : json.end();
  if (!json.is_object() || addresses == json.end() || !addresses->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous file ", path, " holds no JSON object with \"addresses\""));
  }
  RendezvousRecord record;
  for (const Json& address : *addresses) {
    if (!address.is_string() || record.addresses.size() == kMaxAddresses) continue;
    COORDD_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address.get<std::string>()));
    record.addresses.push_back(std::move(parsed));
  }
  record.instance = TextMember(json, "instance");
  record.http = TextMember(json, "http");
  record.token_file = TextMember(json, "token_file");
  record.host = TextMember(json, "host");
  if (const auto pid = json.find("pid"); pid != json.end() && pid->is_number_integer())
    record.pid = pid->get<int>();
  if (const auto tls = json.find("tls"); tls != json.end() && tls->is_object())
    record.tls = {TextMember(*tls, "cert"), TextMember(*tls, "key"), TextMember(*tls, "ca")};
  return record;
}

void PruneRunDirectories(const std::string& parent, absl::Time oldest) {
  std::error_code error;
  std::vector<std::filesystem::path> old;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    struct stat found = {};
    if (lstat(entry.path().c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
        found.st_uid == geteuid() && absl::FromTimeT(found.st_mtime) < oldest)
      old.push_back(entry.path());
  }
  for (const std::filesystem::path& path : old) std::filesystem::remove_all(path, error);
}

}  // namespace coordd
