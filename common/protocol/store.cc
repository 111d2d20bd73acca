#include "common/protocol/store.h"

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

absl::Status Unimplemented(absl::string_view call) {
  return absl::UnimplementedError(absl::StrCat("this store has no ", call));
}

}  // namespace

absl::Status Store::CheckKey(absl::string_view key) {
  if (!key.empty() && key.size() <= static_cast<size_t>(kMaxKeyBytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("store key of ", key.size(), " bytes, expected 1 to ", kMaxKeyBytes));
}

absl::Status Store::CheckValue(absl::string_view key, size_t value_bytes) {
  if (value_bytes <= static_cast<size_t>(kMaxValueBytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("value of store key ", key, " has ", value_bytes,
                                                 " bytes, expected at most ", kMaxValueBytes));
}

absl::StatusOr<std::optional<std::string>> Store::CompareSet(
    absl::string_view /*key*/, std::optional<std::string> /*expected*/, std::string /*desired*/,
    absl::Time /*deadline*/) {
  return Unimplemented("CompareSet");
}

absl::StatusOr<int64_t> Store::Append(absl::string_view /*key*/, std::string /*value*/,
                                      absl::Time /*deadline*/) {
  return Unimplemented("Append");
}

absl::StatusOr<bool> Store::Delete(absl::string_view /*key*/, absl::Time /*deadline*/) {
  return Unimplemented("Delete");
}

absl::StatusOr<std::vector<std::optional<std::string>>> Store::Look(
    const std::vector<std::string>& /*keys*/, bool /*values*/, absl::Time /*deadline*/) {
  return Unimplemented("Look");
}

absl::StatusOr<int64_t> Store::Count(absl::string_view /*prefix*/, absl::Time /*deadline*/) {
  return Unimplemented("Count");
}

}  // namespace coordd
