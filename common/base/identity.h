// Who a certificate says that somebody is: a role and a name, in an URI among its names.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace coordd {

// What coordd lets each do is in server/model/access_rules.h.
enum class Role {
  kNone,  // a certificate that says none, as those of coordd before it knew roles
  kOperator,
  kLauncher,
  kWorker,
  kNode,  // the relay of a node
  kViewer,
};

inline constexpr size_t kMaxIdentityNameBytes = 128;
// Instead of the name of a worker's job, or of a relay's node: any.
inline constexpr char kAnyName[] = "*";

struct Identity {
  Role role = Role::kNone;
  // Of a worker its job, of a node its host name or node id; of kNone the certificate's common
  // name. Empty: whoever speaks to a coordd without TLS, who is an operator.
  std::string name;

  bool operator==(const Identity&) const = default;
};

// PURE, all of them.
absl::string_view Name(Role role);                      // "operator"; of kNone "none"
std::optional<Role> RoleNamed(absl::string_view name);  // absent: there is none of this name
Identity WithoutTls();                                  // who may do everything

// INVALID_ARGUMENT: `name` has other characters than letters, digits and . _ - @, is longer than
// kMaxIdentityNameBytes or empty, or is kAnyName of another role than worker and node.
absl::StatusOr<Identity> MakeIdentity(Role role, absl::string_view name);

// `text`, such as a user's login, as a name: what it may not have becomes '_'; "owner" if empty.
std::string NameFrom(absl::string_view text);

std::string ToUri(const Identity& identity);     // "coordd://operator/alice". REQUIRES: a role
std::string ToString(const Identity& identity);  // for people: "operator/alice"

// Of a certificate with these URIs and this common name: kNone if none of them is coordd's.
// PERMISSION_DENIED: one is no role and name, or there are two.
absl::StatusOr<Identity> IdentityOf(absl::Span<const std::string> uris,
                                    absl::string_view common_name);

}  // namespace coordd
