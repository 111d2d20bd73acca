#include "client/coordrun/coordinator/exit_reporter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/tls.h"

namespace coordd {
namespace {

// As coordd takes them.
constexpr size_t kMaxExits = 1024;
// coordd may be on its way up again.
constexpr std::chrono::seconds kWithin(5);
constexpr int kMaxAttempts = 3;
constexpr int kReconnectMs = 50;
constexpr std::chrono::milliseconds kLooksEvery(20);

}  // namespace

struct ExitReporter::Call {
  grpc::ClientContext context;
  v1::ReportExitsRequest request;
  v1::ReportExitsReply reply;
};

ExitReporter::ExitReporter(std::shared_ptr<grpc::Channel> channel, std::string job,
                           std::string token)
    : channel_(std::move(channel)),
      stub_(v1::Admin::NewStub(channel_)),
      job_(std::move(job)),
      token_(std::move(token)) {}

absl::StatusOr<std::unique_ptr<ExitReporter>> ExitReporter::Start(const Target& target,
                                                                  std::string job,
                                                                  std::string token) {
  COORDD_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFrom(target.tls));
  grpc::ChannelArguments arguments;
  arguments.SetInt("grpc.enable_http_proxy", 0);
  for (const char* name :
       {GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS})
    arguments.SetInt(name, kReconnectMs);
  const auto channel = grpc::CreateCustomChannel(target.address, credentials, arguments);
  channel->GetState(/*try_to_connect=*/true);
  return std::unique_ptr<ExitReporter>(new ExitReporter(channel, std::move(job), std::move(token)));
}

ExitReporter::~ExitReporter() {
  MutexLock lock(&mu_);
  closing_ = true;
  if (call_ != nullptr) call_->context.TryCancel();
  while (call_ != nullptr) idle_.Wait(&mu_);
}

void ExitReporter::Report(v1::LaunchedExit exit) {
  Call* next = nullptr;
  {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(exit));
    next = PrepareNext();
  }
  if (next != nullptr) Send(next);
}

void ExitReporter::Flush(absl::Duration most) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(most);
  MutexLock lock(&mu_);
  while (call_ != nullptr && CanBeReached()) {
    const auto left =
        std::min<std::chrono::nanoseconds>(end - std::chrono::steady_clock::now(), kLooksEvery);
    if (left.count() <= 0) return;
    idle_.WaitFor(&mu_, absl::FromChrono(left));
  }
}

// A connection that was idle for long has been closed, and is made again for the call.
bool ExitReporter::CanBeReached() const {
  return channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE;
}

ExitReporter::Call* ExitReporter::PrepareNext() {
  if (call_ != nullptr || waiting_.empty() || closing_) return nullptr;
  call_ = std::make_unique<Call>();
  call_->request.set_job(job_);
  call_->request.set_token(token_);
  for (size_t count = std::min(waiting_.size(), kMaxExits); count > 0; --count) {
    *call_->request.add_exits() = std::move(waiting_.front());
    waiting_.pop_front();
  }
  call_->context.set_wait_for_ready(true);
  call_->context.set_deadline(std::chrono::system_clock::now() + kWithin);
  return call_.get();
}

void ExitReporter::Send(Call* call) {
  // Ours until its answer, which may be here before this returns.
  COORDD_TSAN_RELEASE(this);
  stub_->async()->ReportExits(&call->context, &call->request, &call->reply,
                              [this](const grpc::Status& status) { OnDone(status); });
}

void ExitReporter::OnDone(const grpc::Status& status) {
  COORDD_TSAN_ACQUIRE(this);
  Call* next = nullptr;
  {
    MutexLock lock(&mu_);
    const bool again =
        status.error_code() == grpc::StatusCode::UNAVAILABLE && ++attempts_ < kMaxAttempts;
    if (again) {
      const auto& exits = call_->request.exits();
      waiting_.insert(waiting_.begin(), exits.begin(), exits.end());
    } else {
      attempts_ = 0;
    }
    call_.reset();
    next = PrepareNext();
    if (next == nullptr) idle_.NotifyAll();  // nothing of this object is touched any more
  }
  if (next != nullptr) Send(next);
}

}  // namespace coordd
