#include "bench/control/echo_crowd.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace coordd::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);  // against hangs only
constexpr size_t kMessageBytes = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<EchoCrowd>> EchoCrowd::Start(int32_t sessions, int32_t channels) {
  COORDD_ASSIGN_OR_RETURN(std::unique_ptr<ServerProcess> server,
                          ServerProcess::Start({BesideUs("coordd-bench"), "echo-server",
                                                "--sessions", absl::StrCat(sessions)}));
  return std::unique_ptr<EchoCrowd>(new EchoCrowd(std::move(server), sessions, channels));
}

EchoCrowd::EchoCrowd(std::unique_ptr<ServerProcess> server, int32_t sessions, int32_t channels)
    : server_(std::move(server)),
      crowd_(
          {.server = server_->address(),
           .method = "/coordd.bench.Echo/Session",
           .sessions = sessions,
           .channels = channels},
          [this](int32_t, grpc::ByteBuffer&) { arrivals_.Arrive(); },
          [this](int32_t, const absl::Status& status) {
            arrivals_.Fail(absl::AbortedError(
                absl::StrCat("a stream of the yardstick ended: ", status.ToString())));
          }) {
  const grpc::Slice bytes(std::string(kMessageBytes, 'x'));
  message_ = grpc::ByteBuffer(&bytes, 1);
}

absl::StatusOr<absl::Duration> EchoCrowd::Open() {
  for (int32_t i = 0; i < crowd_.sessions(); ++i) crowd_.Open(i);
  return Round();
}

absl::StatusOr<absl::Duration> EchoCrowd::Round() {
  arrivals_.Reset(crowd_.sessions());
  const absl::Time start = Clock::Real().Now();
  for (int32_t i = 0; i < crowd_.sessions(); ++i) crowd_.Send(i, message_);
  COORDD_ASSIGN_OR_RETURN(const absl::Time end, arrivals_.Await(kTimeout));
  return end - start;
}

}  // namespace coordd::bench
