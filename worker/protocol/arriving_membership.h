// The place in the next generation, which may come in several messages. PURE
#pragma once

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/process_set_parts.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// Not thread-safe: a part of WorkerState.
//
// Invariant: nothing is kept behind the last part.
class ArrivingMembership {
 public:
  struct Whole {
    v1::CoordinatorMessage message;  // with the membership
    v1::ProcessSets sets;
  };

  // None: another part follows. INTERNAL: the process sets are of no membership. REQUIRES: it has a
  // membership or process sets.
  absl::StatusOr<std::optional<Whole>> Take(const v1::CoordinatorMessage& message) {
    if (message.has_membership()) {
      whole_ = Whole{message, {}};
      if (message.membership().process_sets_follow()) return std::nullopt;
    } else if (!whole_.has_value() || message.generation() != whole_->message.generation()) {
      return absl::InternalError("coordd sent process sets of a generation without its membership");
    } else {
      if (const absl::Status added = AddPart(message.process_sets(), whole_->sets); !added.ok())
        return absl::InternalError(absl::StrCat("coordd sent ", added.message()));
      if (message.process_sets().more()) return std::nullopt;
    }
    return std::exchange(whole_, std::nullopt);
  }
  // The connection is lost: the rest will not come.
  void Forget() { whole_.reset(); }

 private:
  std::optional<Whole> whole_;
};

}  // namespace coordd
