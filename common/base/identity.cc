#include "common/base/identity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"

namespace coordd {
namespace {

constexpr absl::string_view kScheme = "coordd://";
constexpr std::pair<Role, absl::string_view> kRoles[] = {
    {Role::kOperator, "operator"}, {Role::kLauncher, "launcher"}, {Role::kWorker, "worker"},
    {Role::kNode, "node"},         {Role::kViewer, "viewer"},
};

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-' ||
         c == '@';
}

}  // namespace

absl::string_view Name(Role role) {
  for (const auto& [known, name] : kRoles)
    if (known == role) return name;
  return "none";
}

std::optional<Role> RoleNamed(absl::string_view name) {
  for (const auto& [role, known] : kRoles)
    if (known == name) return role;
  return std::nullopt;
}

Identity WithoutTls() { return {Role::kOperator, ""}; }

absl::StatusOr<Identity> MakeIdentity(Role role, absl::string_view name) {
  const bool may_be_any = role == Role::kWorker || role == Role::kNode;
  if (name == kAnyName && may_be_any) return Identity{role, std::string(name)};
  if (!name.empty() && name.size() <= kMaxIdentityNameBytes &&
      std::all_of(name.begin(), name.end(), IsNameCharacter)) {
    return Identity{role, std::string(name)};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the name of ", Name(role), " is \"", PrintableText(name.substr(0, kMaxIdentityNameBytes)),
      "\", expected 1 to ", kMaxIdentityNameBytes, " letters, digits and . _ - @",
      may_be_any ? ", or * for any" : ""));
}

std::string NameFrom(absl::string_view text) {
  std::string name(text.substr(0, kMaxIdentityNameBytes));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !IsNameCharacter(c); }, '_');
  return name.empty() ? "owner" : name;
}

std::string ToUri(const Identity& identity) {
  return absl::StrCat(kScheme, Name(identity.role), "/", identity.name);
}

std::string ToString(const Identity& identity) {
  if (identity == WithoutTls()) return "somebody without TLS";
  if (identity.role == Role::kNone)
    return absl::StrCat("the certificate \"", identity.name, "\", which says no role,");
  return absl::StrCat(Name(identity.role), "/", identity.name);
}

absl::StatusOr<Identity> IdentityOf(absl::Span<const std::string> uris,
                                    absl::string_view common_name) {
  std::optional<Identity> found;
  for (const std::string& uri : uris) {
    absl::string_view rest = uri;
    // Another case of letters is of nobody else's scheme, and coordctl writes none.
    if (!absl::StartsWithIgnoreCase(rest, kScheme)) continue;
    const bool is_ours = absl::ConsumePrefix(&rest, kScheme);
    const size_t slash = rest.find('/');
    const std::optional<Role> role =
        is_ours ? RoleNamed(rest.substr(0, slash)) : std::optional<Role>();
    auto identity = role.has_value() && slash != absl::string_view::npos
                        ? MakeIdentity(*role, rest.substr(slash + 1))
                        : absl::StatusOr<Identity>(absl::InvalidArgumentError(""));
    if (!identity.ok() || found.has_value()) {
      return absl::PermissionDeniedError(absl::StrCat(
          "the certificate \"", PrintableText(common_name), "\" says ",
          found.has_value() ? "more than one role"
                            : absl::StrCat("\"", PrintableText(ShortenedText(uri, 256)), "\""),
          ", expected one of coordd://operator/NAME, launcher/NAME, worker/JOB, node/NAME and "
          "viewer/NAME (coordctl certs makes them)"));
    }
    found = *std::move(identity);
  }
  if (found.has_value()) return *std::move(found);
  return Identity{Role::kNone, PrintableText(ShortenedText(common_name, kMaxIdentityNameBytes))};
}

}  // namespace coordd
