// The store of a generation that is over.
#pragma once

#include <cstdint>
#include <string>

#include "common/protocol/store.h"

namespace coordd {

class ClosedStore final : public Store {
 public:
  absl::Status Set(absl::string_view, std::string, absl::Time) override { return Over(); }
  absl::StatusOr<std::string> Get(absl::string_view, absl::Time) override { return Over(); }
  absl::StatusOr<int64_t> Add(absl::string_view, int64_t, absl::Time) override { return Over(); }
  absl::Status DeletePrefix(absl::string_view, absl::Time) override { return Over(); }

 private:
  static absl::Status Over() { return absl::FailedPreconditionError("generation 1 is over"); }
};

}  // namespace coordd
