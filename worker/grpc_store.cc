#include "worker/grpc_store.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/backoff.h"
#include "common/grpc_status.h"
#include "common/mutex.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "coordd/v1/store.grpc.pb.h"

namespace coordd {
namespace {

// The service demands a deadline; this stands for "for ever".
constexpr absl::Duration kMaxWait = absl::Hours(24);

absl::Status CheckKey(absl::string_view key) {
  if (key.empty() || static_cast<int64_t>(key.size()) > Store::kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("store key of ", key.size(), " bytes, expected 1 to ", Store::kMaxKeyBytes));
  }
  return absl::OkStatus();
}

class GrpcStore final : public Store {
 public:
  GrpcStore(std::shared_ptr<grpc::Channel> channel, StoreCredentials credentials, Clock& clock)
      : stub_(v1::Store::NewStub(channel)), credentials_(std::move(credentials)), clock_(clock) {}

  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    if (static_cast<int64_t>(value.size()) > kMaxValueBytes) {
      return absl::InvalidArgumentError(absl::StrCat("store value of ", value.size(), " bytes for ",
                                                     key, ", expected at most ", kMaxValueBytes));
    }
    v1::SetRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    request.set_value(std::move(value));
    v1::SetResponse response;
    return Repeat(deadline, [&](grpc::ClientContext* context) {
      return stub_->Set(context, request, &response);
    });
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    v1::GetRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    v1::GetResponse response;
    const absl::Status status = Repeat(deadline, [&](grpc::ClientContext* context) {
      return stub_->Get(context, request, &response);
    });
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(
          absl::StrCat("store key ", key, ": nobody set it in time"));
    }
    COORDD_RETURN_IF_ERROR(status);
    return std::move(*response.mutable_value());
  }

  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    v1::AddRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    request.set_delta(delta);
    v1::AddResponse response;
    COORDD_RETURN_IF_ERROR(Once(deadline, [&](grpc::ClientContext* context) {
      return stub_->Add(context, request, &response);
    }));
    return response.sum();
  }

  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(prefix));
    v1::DeletePrefixRequest request;
    Sign(request.mutable_caller());
    request.set_prefix(std::string(prefix));
    v1::DeletePrefixResponse response;
    return Repeat(deadline, [&](grpc::ClientContext* context) {
      return stub_->DeletePrefix(context, request, &response);
    });
  }

 private:
  using Call = absl::FunctionRef<grpc::Status(grpc::ClientContext*)>;

  void Sign(v1::StoreCaller* caller) const {
    caller->set_job(credentials_.job);
    caller->set_token(credentials_.token);
  }

  // One try, which waits for the connection if there is none.
  absl::Status Once(absl::Time deadline, Call call) {
    grpc::ClientContext context;
    const absl::Duration left = std::min(deadline - clock_.Now(), kMaxWait);
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(left));
    context.set_wait_for_ready(true);
    return FromGrpc(call(&context));
  }

  absl::Status Repeat(absl::Time deadline, Call call) {
    Random random = Random::FromSystem();
    Backoff backoff(BackoffOptions{}, random);
    while (true) {
      absl::Status status = Once(deadline, call);
      if (!absl::IsUnavailable(status)) return status;
      const absl::Time next = clock_.Now() + backoff.Next();
      if (next >= deadline) return status;
      // Nobody signals: a wait on the clock.
      Mutex mu;
      CondVar never;
      MutexLock lock(&mu);
      clock_.Await(
          &mu, &never, [] { return false; }, next);
    }
  }

  const std::unique_ptr<v1::Store::Stub> stub_;
  const StoreCredentials credentials_;
  Clock& clock_;
};

}  // namespace

std::unique_ptr<Store> NewGrpcStore(std::shared_ptr<grpc::Channel> channel,
                                    StoreCredentials credentials, Clock& clock) {
  return std::make_unique<GrpcStore>(std::move(channel), std::move(credentials), clock);
}

}  // namespace coordd
