#include "worker/transport.h"

#include <utility>

namespace coordd {

void Transport::ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) {
  Receive(from, tag, landing,
          [bytes = landing.data(), taken = std::move(taken)](absl::Status status) mutable {
            std::move(taken)(status.ok() ? absl::StatusOr<const std::byte*>(bytes)
                                         : absl::StatusOr<const std::byte*>(std::move(status)));
          });
}

}  // namespace coordd
