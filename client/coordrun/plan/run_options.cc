#include "client/coordrun/plan/run_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/coordrun/plan/ddl_part.h"
#include "client/coordrun/plan/launcher_kind.h"
#include "common/base/stable_hash.h"
#include "common/base/status_macros.h"
#include "common/base/token_file.h"
#include "common/base/utf8.h"
#include "common/net/address.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

absl::Status CheckAddress(const char* option, const std::string& text, bool may_be_off) {
  if (may_be_off && text == "off") return absl::OkStatus();
  if (const auto parsed = ParseHostPort(text); !parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", parsed.status().message()));
  }
  return absl::OkStatus();
}

absl::Status CheckElastic(const RunOptions& options) {
  const bool discovers = !options.discovery_script.empty();
  if (discovers && (!options.hosts.empty() || !options.hostfile.empty())) {
    return absl::InvalidArgumentError(
        "--host-discovery-script tells the hosts: expected no -H and no --hostfile with it");
  }
  if (discovers && !options.launcher.empty() && options.launcher != "ssh") {
    return absl::InvalidArgumentError(absl::StrCat("--host-discovery-script with --launcher ",
                                                   options.launcher, ": expected ssh, or none"));
  }
  const int32_t least = options.min_np > 0 ? options.min_np : options.np_given ? options.np : 1;
  if (options.max_np > 0 && options.max_np < least) {
    return absl::InvalidArgumentError(absl::StrCat("--max-np is ", options.max_np,
                                                   ": expected at least ", least,
                                                   options.min_np > 0 ? " (--min-np)" : " (-np)"));
  }
  if (options.max_np > 0 && !discovers && options.np_given && options.np > options.max_np) {
    return absl::InvalidArgumentError(
        absl::StrCat("-np is ", options.np, ": expected at most --max-np ", options.max_np));
  }
  if (options.cooldown_min <= absl::ZeroDuration() || options.cooldown_max < options.cooldown_min) {
    return absl::InvalidArgumentError(
        absl::StrCat("--blacklist-cooldown-range is ", absl::FormatDuration(options.cooldown_min),
                     " to ", absl::FormatDuration(options.cooldown_max),
                     ": expected a positive number and one that is not smaller"));
  }
  return absl::OkStatus();
}

// What coordrun has to know of its coordd, or decides from flags of its own.
absl::Status CheckCoorddArguments(const RunOptions& options) {
  for (const char* name : {"--listen", "--ready-fd", "--tls-cert", "--tls-key", "--tls-ca"}) {
    if (!CoorddArgument(options, name)) continue;
    const bool has_own = name == absl::string_view("--listen");
    return absl::InvalidArgumentError(
        absl::StrCat("--coordd-arg gives coordd's ", name, ", which coordrun decides: expected ",
                     has_own ? "coordrun's own --listen" : "no such argument", " instead"));
  }
  return absl::OkStatus();
}

bool IsHttpTrusted(const RunOptions& options) {
  return options.insecure_http || CoorddArgument(options, "--insecure-http") ||
         CoorddArgument(options, "--insecure");
}

// Before coordd refuses it.
absl::Status CheckHttp(const RunOptions& options) {
  COORDD_RETURN_IF_ERROR(CheckAddress("--http", options.http, true));
  if (options.http == "off" || !options.coordinator.empty()) return absl::OkStatus();
  if (!options.http_token_file.empty()) {
    COORDD_RETURN_IF_ERROR(CheckTokenFile("--http-token-file", options.http_token_file));
    if (!options.HttpHasTls()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--http-token-file is for --http beyond loopback with TLS, and --http is ",
                       options.http, ": a token would be read on its way"));
    }
  }
  const HostPort http = ParseHostPort(options.http).value_or(HostPort());
  if (IsLoopback(http.host) || options.HttpHasTls() || IsHttpTrusted(options))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--http is ", options.http,
      ", where whoever reaches it reads the names, hosts and states of all jobs, without TLS or a "
      "password: expected no --no-tls, or 127.0.0.1:",
      http.port, ", or --insecure-http besides, if the network itself is trusted"));
}

}  // namespace

bool RunOptions::HttpHasTls() const {
  if (http == "off" || !tls || IsHttpTrusted(*this)) return false;
  return !IsLoopback(ParseHostPort(http).value_or(HostPort()).host);
}

absl::Status RunOptions::Validate() const {
  if (np < 1)
    return absl::InvalidArgumentError(absl::StrCat("-np is ", np, ": expected 1 or more"));
  COORDD_RETURN_IF_ERROR(CheckElastic(*this));
  const int32_t all = size == 0 ? np : size;
  if (first_rank < 0 || first_rank + np > all) {
    return absl::InvalidArgumentError(
        absl::StrCat("--first-rank ", first_rank, " with -np ", np,
                     " goes beyond the job's size: expected at most --size ", all));
  }
  if (!launcher.empty() && !LauncherFrom(launcher)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--launcher is ", launcher, ": expected local, ssh, blaunch, srun, mpirun or external",
        launcher == "jsrun"    ? "; jsrun starts the workers itself: jsrun -n 2 -a 6 -g 6 -c 42 "
                                 "python train.py, without coordrun"
        : launcher == "ddlrun" ? "; ddlrun's flags are understood without it: coordrun -H h1,h2 "
                                 "--accelerators 6 python train.py"
                               : ""));
  }
  COORDD_RETURN_IF_ERROR(DdlShapeOf(*this).status());
  if (ddl.asked() && !discovery_script.empty()) {
    return absl::InvalidArgumentError(
        "--host-discovery-script with ddlrun's flags, whose topology has a fixed number of hosts: "
        "expected --slots-per-host, and COORDD_TOPOLOGY=aisle1/rack2 on each host");
  }
  if (!port_range.empty() && !ParsePortRange(port_range).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--port-range is ", port_range, ": expected FIRST-LAST, such as 20000-20100"));
  }
  if (command.empty() || command[0].empty()) {
    return absl::InvalidArgumentError("no command: expected coordrun [options] -- COMMAND...");
  }
  if (coordinator.empty() && size > np &&
      (listen.empty() || IsLoopback(ParseHostPort(listen).value_or(HostPort()).host))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--size ", size, " with -np ", np,
                     ": the others could not reach a coordd on loopback; expected --coordinator or "
                     "--listen HOST:PORT"));
  }
  if (!coordinator.empty()) {
    COORDD_RETURN_IF_ERROR(CheckAddress("--coordinator", coordinator, false));
    if (ParseHostPort(coordinator)->port == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--coordinator is ", coordinator, ", and nobody listens on port 0: expected HOST:PORT"));
    }
    if (keep) {
      return absl::InvalidArgumentError(
          "--keep is for the coordd that coordrun starts: expected no --coordinator");
    }
  }
  if (!listen.empty()) COORDD_RETURN_IF_ERROR(CheckAddress("--listen", listen, false));
  if (!job.empty()) COORDD_RETURN_IF_ERROR(CheckJobName("--job", job));
  COORDD_RETURN_IF_ERROR(CheckHttp(*this));
  COORDD_RETURN_IF_ERROR(CheckCoorddArguments(*this));
  if (!metrics.empty() && metrics != "auto")
    COORDD_RETURN_IF_ERROR(CheckAddress("--metrics", metrics, true));
  if (!tls && coordinator.empty() && !listen.empty() && !IsLoopback(ParseHostPort(listen)->host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--no-tls with --listen ", listen,
        ": without TLS anybody in the network could join; expected a loopback address"));
  }
  return absl::OkStatus();
}

std::string JobNameFrom(const std::string& program) {
  const std::string file = program.substr(program.find_last_of('/') + 1);
  std::string name = file.substr(0, kMaxJobNameBytes);
  bool foreign = false;
  for (char& c : name) {
    foreign = foreign || !absl::ascii_isascii(static_cast<unsigned char>(c));
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_') c = '-';
  }
  if (!foreign) return name.empty() ? "job" : name;
  // The same wherever the file lies, since all coordruns of a job have to come to one name.
  const std::string hash = absl::StrCat(absl::Hex(StableHash(file) >> 32, absl::kZeroPad8));
  return name.substr(0, kMaxJobNameBytes - hash.size()) + hash;
}

absl::Status CheckJobName(absl::string_view source, const std::string& job) {
  const bool fits = !job.empty() && job.size() <= kMaxJobNameBytes &&
                    std::all_of(job.begin(), job.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
                             c == '_' || c == '-';
                    });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source, " is '", PrintableText(ShortenedText(job, kMaxJobNameBytes)),
                   "': expected 1 to ", kMaxJobNameBytes, " letters, digits, '.', '_' or '-'"));
}

std::optional<std::string> CoorddArgument(const RunOptions& options, absl::string_view name) {
  const std::vector<std::string>& all = options.coordd_arguments;
  for (size_t i = 0; i < all.size(); ++i) {
    absl::string_view rest = all[i];
    if (!absl::ConsumePrefix(&rest, name)) continue;
    if (rest.empty()) return i + 1 < all.size() ? all[i + 1] : "";
    if (absl::ConsumePrefix(&rest, "=")) return std::string(rest);
  }
  return std::nullopt;
}

absl::Status ParseVariable(const std::string& text, RunOptions* options) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (!is_name) {
    return absl::InvalidArgumentError(absl::StrCat(
        "-x ", PrintableText(text), ": expected NAME or NAME=VALUE, with a name without spaces"));
  }
  std::optional<std::string> value;
  if (equals != std::string::npos) value = text.substr(equals + 1);
  options->variables.emplace_back(name, value);
  return absl::OkStatus();
}

}  // namespace coordd
