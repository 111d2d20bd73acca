#include "server/job/job_token.h"

#include "absl/strings/str_cat.h"
#include "common/base/secret.h"
#include "server/model/digest.h"
#include "server/model/job_record.h"

namespace coordd {

void JobToken::Begin(absl::string_view token) {
  token_ = std::string(token);
  hash_ = TokenHash(cluster_id_, job_, token_);
}

v1::JobRecord JobToken::Record() const {
  v1::JobRecord record;
  record.set_token_hash(hash_);
  record.set_owner(owner_);
  return record;
}

bool JobToken::IsRight(absl::string_view token) const {
  const bool only_hash = token_.empty() && !hash_.empty();
  return only_hash ? SecretsEqual(TokenHash(cluster_id_, job_, token), hash_)
                   : SecretsEqual(token, token_);
}

bool JobToken::IsKnownBy(absl::string_view token) const { return !token.empty() && IsRight(token); }

absl::Status JobToken::Check(absl::string_view token) {
  if (IsRight(token)) {
    token_ = std::string(token);
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      absl::StrCat(token.empty() ? "no token" : "wrong token", " for job ", job_,
                   ": expected that of the run (COORDD_TOKEN_FILE, which coordrun sets)"));
}

}  // namespace coordd
