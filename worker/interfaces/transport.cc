#include "worker/interfaces/transport.h"

#include <utility>

namespace coordd {

Transport::Done TakenFrom(absl::Span<const std::byte> landing, Transport::Taken taken) {
  return [bytes = landing.data(), taken = std::move(taken)](absl::Status status) mutable {
    if (status.ok()) {
      std::move(taken)(bytes);
    } else {
      std::move(taken)(std::move(status));
    }
  };
}

}  // namespace coordd
