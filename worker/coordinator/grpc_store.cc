#include "worker/coordinator/grpc_store.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/backoff.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/grpc/grpc_status.h"
#include "common/protocol/proto_convert.h"
#include "coordd/v1/store.grpc.pb.h"

namespace coordd {
namespace {

// The service demands a deadline; this stands for "for ever".
constexpr absl::Duration kMaxWait = absl::Hours(24);
// How often a call that waits for a connection asks whether coordd is somewhere else by now.
constexpr absl::Duration kLookAgain = absl::Milliseconds(200);

class GrpcStore final : public Store {
 public:
  GrpcStore(ChannelSource channel, StoreCredentials credentials, Clock& clock,
            std::shared_ptr<StoreRecord> record)
      : channel_(std::move(channel)),
        credentials_(std::move(credentials)),
        clock_(clock),
        record_(std::move(record)) {}

  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    COORDD_RETURN_IF_ERROR(CheckValue(key, value.size()));
    v1::SetRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    request.set_value(std::move(value));
    v1::SetResponse response;
    return Write(
        deadline, /*again=*/true, response,
        [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.Set(context, request, &response);
        },
        [&](WrittenKeys& written) { written.Set(key, request.value(), VersionIn(response)); });
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    v1::GetRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    v1::GetResponse response;
    const absl::Status status =
        Repeat(deadline, [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.Get(context, request, &response);
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
    COORDD_RETURN_IF_ERROR(Write(
        deadline, /*again=*/false, response,
        [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.Add(context, request, &response);
        },
        [&](WrittenKeys& written) {
          written.Add(key, delta, response.sum(), VersionIn(response));
        }));
    return response.sum();
  }

  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(prefix));
    v1::DeletePrefixRequest request;
    Sign(request.mutable_caller());
    request.set_prefix(std::string(prefix));
    v1::DeletePrefixResponse response;
    return Write(
        deadline, /*again=*/true, response,
        [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.DeletePrefix(context, request, &response);
        },
        [&](WrittenKeys& written) { written.DeletePrefix(prefix, VersionIn(response)); });
  }

  absl::StatusOr<std::optional<std::string>> CompareSet(absl::string_view key,
                                                        std::optional<std::string> expected,
                                                        std::string desired,
                                                        absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    COORDD_RETURN_IF_ERROR(CheckValue(key, desired.size()));
    v1::CompareSetRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    if (expected.has_value()) request.set_expected(*std::move(expected));
    request.set_desired(std::move(desired));
    v1::CompareSetResponse response;
    // Again, where its answer was lost: then the value is the desired one already, which is what
    // the caller hears.
    COORDD_RETURN_IF_ERROR(Write(
        deadline, /*again=*/true, response,
        [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.CompareSet(context, request, &response);
        },
        [&](WrittenKeys& written) {
          if (response.has_value() && response.value() == request.desired())
            written.Set(key, request.desired(), VersionIn(response));
        }));
    if (!response.has_value()) return std::nullopt;
    return std::move(*response.mutable_value());
  }

  absl::StatusOr<int64_t> Append(absl::string_view key, std::string value,
                                 absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    COORDD_RETURN_IF_ERROR(CheckValue(key, value.size()));
    v1::AppendRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    request.set_value(std::move(value));
    request.set_wants_value(record_ != nullptr);
    v1::AppendResponse response;
    COORDD_RETURN_IF_ERROR(Write(
        deadline, /*again=*/false, response,
        [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.Append(context, request, &response);
        },
        [&](WrittenKeys& written) { written.Append(key, response.value(), VersionIn(response)); }));
    return response.size_bytes();
  }

  absl::StatusOr<bool> Delete(absl::string_view key, absl::Time deadline) override {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    v1::DeleteRequest request;
    Sign(request.mutable_caller());
    request.set_key(std::string(key));
    v1::DeleteResponse response;
    COORDD_RETURN_IF_ERROR(Write(
        deadline, /*again=*/true, response,
        [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.Delete(context, request, &response);
        },
        [&](WrittenKeys& written) { written.Delete(key, VersionIn(response)); }));
    return response.deleted();
  }

  absl::StatusOr<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                               bool values,
                                                               absl::Time deadline) override {
    std::vector<std::optional<std::string>> found;
    while (found.size() < keys.size()) {
      v1::LookRequest request;
      Sign(request.mutable_caller());
      request.set_values(values);
      for (size_t at = found.size(); at < keys.size() && at < found.size() + kMaxLookKeys; ++at) {
        COORDD_RETURN_IF_ERROR(CheckKey(keys[at]));
        request.add_keys(keys[at]);
      }
      v1::LookResponse response;
      COORDD_RETURN_IF_ERROR(
          Repeat(deadline, [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
            return stub.Look(context, request, &response);
          }));
      if (response.found_size() < 1 || response.found_size() > request.keys_size())
        return absl::InternalError("coordd has answered for other keys than it was asked for");
      for (v1::LookResponse::Found& one : *response.mutable_found()) {
        found.emplace_back();
        if (one.is_there()) found.back() = std::move(*one.mutable_value());
      }
    }
    return found;
  }

  absl::StatusOr<int64_t> Count(absl::string_view prefix, absl::Time deadline) override {
    v1::CountRequest request;
    Sign(request.mutable_caller());
    request.set_prefix(std::string(prefix));
    v1::CountResponse response;
    COORDD_RETURN_IF_ERROR(
        Repeat(deadline, [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.Count(context, request, &response);
        }));
    return response.keys();
  }

 private:
  using Call = absl::FunctionRef<grpc::Status(v1::Store::Stub&, grpc::ClientContext*)>;

  void Sign(v1::StoreCaller* caller) const {
    caller->set_job(credentials_.job);
    caller->set_token(credentials_.token);
  }

  static std::chrono::system_clock::time_point After(absl::Duration duration) {
    return std::chrono::system_clock::now() + absl::ToChronoMicroseconds(duration);
  }

  template <typename Response>
  static WrittenKeys::Version VersionIn(const Response& response) {
    if (!response.has_version()) return std::nullopt;
    return FromProto(response.version());
  }

  // The epoch of the coordd that is there now.
  absl::StatusOr<int64_t> Epoch(absl::Time deadline) {
    v1::LookRequest request;
    Sign(request.mutable_caller());
    v1::LookResponse response;
    COORDD_RETURN_IF_ERROR(
        Repeat(deadline, [&](v1::Store::Stub& stub, grpc::ClientContext* context) {
          return stub.Look(context, request, &response);
        }));
    return response.epoch();
  }

  // A call that changes something, whose answer `note` takes down. Where this worker has said
  // meanwhile what it had written, the coordd that has answered may be gone, and the write with it:
  // then it is made again, or fails if it may not be (`again`).
  template <typename Response>
  absl::Status Write(absl::Time deadline, bool again, const Response& response, Call call,
                     absl::FunctionRef<void(WrittenKeys&)> note) {
    for (;;) {
      int64_t reports = record_ == nullptr ? 0 : record_->reports();
      COORDD_RETURN_IF_ERROR(Repeat(deadline, call, again));
      if (record_ == nullptr) return absl::OkStatus();
      for (bool is_there = true; is_there;) {
        if (record_->Note(reports, note) || !response.has_version()) return absl::OkStatus();
        reports = record_->reports();
        COORDD_ASSIGN_OR_RETURN(const int64_t epoch, Epoch(deadline));
        is_there = epoch == response.version().epoch();
      }
      if (!again)
        return absl::UnavailableError(
            "coordd was started again while it answered: whether the store has this is not known");
    }
  }

  static absl::Status NotKnown(const absl::Status& status) {
    return absl::UnavailableError(absl::StrCat(
        "the connection to coordd ended during this call, so that it is not known whether the "
        "store has it (",
        status.message(), ")"));
  }

  // One try, which waits for the connection if there is none.
  absl::Status Once(absl::Time deadline, Call call) {
    std::shared_ptr<grpc::Channel> channel = channel_();
    for (;;) {
      const absl::Duration left = deadline - clock_.Now();
      if (channel->WaitForConnected(After(std::clamp(left, absl::ZeroDuration(), kLookAgain))))
        break;
      if (left <= kLookAgain)
        return absl::DeadlineExceededError("coordd could not be reached in time");
      channel = channel_();
    }
    grpc::ClientContext context;
    context.set_deadline(After(std::min(deadline - clock_.Now(), kMaxWait)));
    const std::unique_ptr<v1::Store::Stub> stub = v1::Store::NewStub(channel);
    return FromCoordd(call(*stub, &context));
  }

  // Also one that coordd may have carried out (`again`).
  absl::Status Repeat(absl::Time deadline, Call call, bool again = true) {
    Random random = Random::FromSystem();
    Backoff backoff(BackoffOptions{}, random);
    while (true) {
      absl::Status status = Once(deadline, call);
      if (!absl::IsUnavailable(status)) return status;
      if (!again && !WasNeverSent(status)) return NotKnown(status);
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

  const ChannelSource channel_;
  const StoreCredentials credentials_;
  Clock& clock_;
  const std::shared_ptr<StoreRecord> record_;
};

}  // namespace

std::unique_ptr<Store> NewGrpcStore(ChannelSource channel, StoreCredentials credentials,
                                    Clock& clock, std::shared_ptr<StoreRecord> record) {
  return std::make_unique<GrpcStore>(std::move(channel), std::move(credentials), clock,
                                     std::move(record));
}

}  // namespace coordd
