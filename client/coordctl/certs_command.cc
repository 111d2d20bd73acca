#include "client/coordctl/certs_command.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/shell_word.h"
#include "common/base/status_macros.h"
#include "common/grpc/certs.h"
#include "common/grpc/own_certificate.h"
#include "common/grpc/tls.h"

namespace coordd {
namespace {

std::string UserName(const Environment& environment) {
  const std::string user = Variable(environment, "USER");
  return NameFrom(user.empty() ? Variable(environment, "LOGNAME") : user);
}

nlohmann::ordered_json JsonOf(const TlsFiles& files) {
  return {{"cert", files.cert}, {"key", files.key}, {"ca", files.ca}};
}

// Two lines for a shell: whose they are, and the command.
std::string VariablesOf(absl::string_view whose, const TlsFiles& files) {
  return absl::StrCat("# ", whose, ":\nexport COORDD_TLS_CERT=", ShellWord(files.cert),
                      " COORDD_TLS_KEY=", ShellWord(files.key),
                      " COORDD_TLS_CA=", ShellWord(files.ca), "\n");
}

// Whoever pastes what is printed need not be in the folder in which it was made.
std::string AbsoluteFolder(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, error);
  if (error || directory.empty()) return directory;
  std::string text = absolute.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

// What coordd shows to others is of no role: it is theirs to be known by.
constexpr absl::string_view kServer = "server";

std::string ServerLine(const TlsFiles& server) {
  return absl::StrCat("# coordd, beside its other flags:\ncoordd --tls-cert ",
                      ShellWord(server.cert), " --tls-key ", ShellWord(server.key), " --tls-ca ",
                      ShellWord(server.ca), "\n");
}

// One that is renewed is good for as long as it was: whoever chose ninety days need not say so each
// time.
absl::Duration LifetimeOf(const CertsArguments& arguments, const std::string& renewed = "") {
  constexpr absl::Duration kDay = absl::Hours(24);
  if (arguments.days > 0) return arguments.days * kDay;
  const auto was = ReadCertificateFacts(renewed);
  if (!arguments.renew || !was.ok()) return 365 * kDay;
  return std::max(kDay, absl::Floor(was->end - was->begin, kDay));
}

// Those of `before` that are not in `now`.
std::vector<std::string> Without(std::vector<std::string> before,
                                 const std::vector<std::string>& now) {
  const auto is_kept = [&now](const std::string& name) {
    return std::find(now.begin(), now.end(), name) != now.end();
  };
  before.erase(std::remove_if(before.begin(), before.end(), is_kept), before.end());
  return before;
}

// Whoever means to add one name learns that the others are gone before his clients do.
std::string NamesLines(const std::vector<std::string>& names,
                       const std::vector<std::string>& dropped) {
  std::string lines = absl::StrCat("# its names: ", absl::StrJoin(names, ", "), "\n");
  if (dropped.empty()) return lines;
  // Another program may have made that one, with names that would end a comment of the shell's.
  absl::StrAppend(&lines, "# NO LONGER among them: ", absl::CEscape(absl::StrJoin(dropped, ", ")),
                  ". What --name gives stands for all; to keep them:\n#   --name ",
                  absl::CEscape(absl::StrJoin(dropped, " --name ")), "\n");
  return lines;
}

absl::StatusOr<std::string> AddServer(const CertsArguments& arguments, bool as_json) {
  const TlsFiles files = ServerTlsFiles(arguments.directory);
  // Where it cannot be read nothing is known to be lost.
  const auto before = ServerNamesIn(arguments.directory);
  COORDD_RETURN_IF_ERROR(AddServerCertificate(
      arguments.directory, arguments.names,
      {.lifetime = LifetimeOf(arguments, files.cert), .renew = arguments.renew}));
  COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ServerNamesIn(arguments.directory));
  const std::vector<std::string> dropped = Without(before.value_or(names), names);
  if (!as_json) return absl::StrCat(NamesLines(names, dropped), ServerLine(files));
  nlohmann::ordered_json server = JsonOf(files);
  server["names"] = names;
  server["dropped_names"] = dropped;
  return nlohmann::ordered_json({{std::string(kServer), server}}).dump();
}

absl::StatusOr<std::string> AddOne(const CertsArguments& arguments, bool as_json,
                                   const Environment& environment) {
  COORDD_ASSIGN_OR_RETURN(const Identity client, IdentityAskedFor(arguments, environment));
  const std::string stem = arguments.names.empty()
                               ? std::string(Name(client.role))
                               : absl::StrCat(Name(client.role), "-", client.name);
  const std::string path = absl::StrCat(arguments.directory, "/", stem);
  COORDD_RETURN_IF_ERROR(
      AddCertificate(arguments.directory, stem, client,
                     {.lifetime = LifetimeOf(arguments, path + ".crt"), .renew = arguments.renew}));
  const TlsFiles files = {path + ".crt", path + ".key", arguments.directory + "/ca.crt"};
  if (as_json) {
    const nlohmann::ordered_json json = {{std::string(Name(client.role)), JsonOf(files)}};
    return json.dump();
  }
  return VariablesOf(ToString(client), files);
}

}  // namespace

absl::StatusOr<Identity> IdentityAskedFor(const CertsArguments& arguments,
                                          const Environment& environment) {
  const std::optional<Role> role = RoleNamed(arguments.role);
  if (!role.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--role is \"", arguments.role,
                     "\", expected server, operator, launcher, worker, node or viewer"));
  }
  if (arguments.names.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--name is there ", arguments.names.size(),
                     " times with --role, expected the one name of whom the certificate is"));
  }
  if (!arguments.names.empty()) return MakeIdentity(*role, arguments.names[0]);
  const bool is_any = *role == Role::kWorker || *role == Role::kNode;
  return MakeIdentity(*role, is_any ? kAnyName : UserName(environment));
}

absl::StatusOr<std::string> MakeCerts(const CertsArguments& given, bool as_json,
                                      const Environment& environment) {
  CertsArguments arguments = given;
  arguments.directory = AbsoluteFolder(given.directory);
  if (arguments.renew && arguments.role.empty()) {
    return absl::InvalidArgumentError(
        "--renew is given without --role, expected --role server, or a client's, whose certificate "
        "is made anew: another authority is a new DIR");
  }
  if (arguments.role == kServer) return AddServer(arguments, as_json);
  if (!arguments.role.empty()) return AddOne(arguments, as_json, environment);
  CertOptions options;
  options.server_names = arguments.names;
  options.lifetime = LifetimeOf(arguments);
  options.authority_lifetime = absl::Hours(24 * arguments.authority_days);
  options.clients = {{Role::kWorker, kAnyName}, {Role::kOperator, UserName(environment)}};
  COORDD_RETURN_IF_ERROR(MakeCertificates(arguments.directory, options));
  const TlsFiles server = ServerTlsFiles(arguments.directory);
  const TlsFiles worker = WorkerTlsFiles(arguments.directory);
  const TlsFiles oper = RoleTlsFiles(arguments.directory, Role::kOperator);
  if (as_json) {
    const nlohmann::ordered_json json = {
        {"server", JsonOf(server)}, {"worker", JsonOf(worker)}, {"operator", JsonOf(oper)}};
    return json.dump();
  }
  return absl::StrCat(ServerLine(server), VariablesOf("workers", worker),
                      VariablesOf(ToString(options.clients[1]), oper), "# Keep ",
                      arguments.directory,
                      "/ca.key where nobody else can read it, or delete it: only more "
                      "certificates, and renewed ones, need it (--role).\n");
}

}  // namespace coordd
