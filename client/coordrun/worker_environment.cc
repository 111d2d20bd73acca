#include "client/coordrun/worker_environment.h"

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

void SetOrErase(Environment& environment, const std::string& name, const std::string& value) {
  if (value.empty()) {
    environment.erase(name);
  } else {
    environment[name] = value;
  }
}

}  // namespace

absl::StatusOr<Environment> EnvironmentOfWorker(const RunOptions& options,
                                                const Rendezvous& rendezvous, int32_t local_rank,
                                                const Environment& inherited) {
  Environment environment = inherited;
  SetOrErase(environment, "COORDD_ADDR", rendezvous.address);
  SetOrErase(environment, "COORDD_JOB_ID", rendezvous.job);
  SetOrErase(environment, "COORDD_TOKEN_FILE", rendezvous.token_file);
  SetOrErase(environment, "COORDD_TLS_CA", rendezvous.tls.ca);
  SetOrErase(environment, "COORDD_TLS_CERT", rendezvous.tls.cert);
  SetOrErase(environment, "COORDD_TLS_KEY", rendezvous.tls.key);
  environment["COORDD_RANK"] = absl::StrCat(options.first_rank + local_rank);
  environment["COORDD_SIZE"] = absl::StrCat(options.size == 0 ? options.np : options.size);
  environment["COORDD_LOCAL_RANK"] = absl::StrCat(local_rank);
  environment["COORDD_LOCAL_SIZE"] = absl::StrCat(options.np);
  SetOrErase(environment, "COORDD_METRICS", options.metrics == "off" ? "" : options.metrics);
  for (const auto& [name, value] : options.variables) {
    if (value) {
      environment[name] = *value;
    } else if (inherited.find(name) == inherited.end()) {
      return absl::NotFoundError(
          absl::StrCat("-x ", name, ": is not set; expected -x ", name, "=VALUE"));
    }
  }
  return environment;
}

}  // namespace coordd
