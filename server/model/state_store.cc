#include "server/model/state_store.h"

#include "absl/strings/str_cat.h"

namespace coordd {

absl::Status CheckStateWrites(absl::Span<const StateWrite> writes, bool bound_bytes) {
  if (writes.size() > StateStore::kMaxWrites) {
    return absl::InvalidArgumentError(absl::StrCat(writes.size(), " records in one write, at most ",
                                                   StateStore::kMaxWrites, " are taken"));
  }
  size_t bytes = 0;
  for (const StateWrite& write : writes) {
    if (write.key.empty() || write.key.size() > StateStore::kMaxKeyBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a record's key of ", write.key.size(),
                                                     " bytes, expected 1 to ",
                                                     StateStore::kMaxKeyBytes));
    }
    bytes += write.key.size() + (write.value.has_value() ? write.value->size() : 0);
  }
  if (bound_bytes && bytes > StateStore::kMaxCommitBytes) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes in one write, at most ",
                                                   StateStore::kMaxCommitBytes, " are taken"));
  }
  return absl::OkStatus();
}

}  // namespace coordd
