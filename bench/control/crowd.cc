#include "bench/control/crowd.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/certs.h"
#include "common/grpc/grpc_status.h"
#include "common/grpc/tls.h"

namespace coordd::bench {
namespace {

constexpr int kKeepaliveIntervalMs = 5000;

}  // namespace

class Crowd::Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(Crowd& crowd, grpc::GenericStub& stub, int32_t session)
      : crowd_(crowd), stub_(stub), session_(session) {}

  void Open() {
    context_.set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(&context_, crowd_.method_, /*options=*/{}, this);
    {
      MutexLock lock(&mu_);
      opened_ = true;
    }
    StartRead(&incoming_);
    StartCall();
  }

  void Send(const grpc::ByteBuffer& message) {
    MutexLock lock(&mu_);
    if (ended_) return;  // the crowd has been told
    if (writing_) {
      outbox_.push_back(message);
    } else {
      WriteLocked(message);
    }
  }

  void Cancel() {
    MutexLock lock(&mu_);
    if (opened_ && !done_) context_.TryCancel();
  }

 private:
  void WriteLocked(const grpc::ByteBuffer& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    outgoing_ = message;
    COORDD_TSAN_RELEASE(&outgoing_);
    StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) override {
    COORDD_TSAN_ACQUIRE(&outgoing_);
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok || ended_ || outbox_.empty()) return;
    const grpc::ByteBuffer next = std::move(outbox_.front());
    outbox_.pop_front();
    WriteLocked(next);
  }

  void OnReadDone(bool ok) override {
    COORDD_TSAN_ACQUIRE(&incoming_);
    if (!ok) {
      MutexLock lock(&mu_);
      ended_ = true;  // no write may be started any more
      return;
    }
    crowd_.on_message_(session_, incoming_);
    incoming_.Clear();
    COORDD_TSAN_RELEASE(&incoming_);
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(&mu_);
      ended_ = done_ = true;
    }
    crowd_.OnDone(session_, FromGrpc(status));
  }

  // Constant after construction.
  Crowd& crowd_;
  grpc::GenericStub& stub_;
  const int32_t session_;

  // Thread-safe by itself (TryCancel), or gRPC's.
  grpc::ClientContext context_;

  // Touched by one reaction at a time.
  grpc::ByteBuffer incoming_;

  // Guarded by mu_. outgoing_ is gRPC's to read while writing_.
  Mutex mu_;
  std::deque<grpc::ByteBuffer> outbox_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool opened_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

Crowd::Crowd(const Options& options, OnMessage on_message, OnEnd on_end)
    : method_(options.method), on_message_(std::move(on_message)), on_end_(std::move(on_end)) {
  const auto credentials =
      ChannelCredentialsFrom(options.tls.empty() ? TlsFiles() : WorkerTlsFiles(options.tls));
  COORDD_CHECK(credentials.ok());
  for (int32_t i = 0; i < options.channels; ++i) {
    grpc::ChannelArguments arguments;
    // A connection of its own for each channel, as processes would have.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt("coordd.bench.channel", i);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetMaxReceiveMessageSize(-1);
    // A server sees these too: as worker/coordinator/grpc_coordinator_link.cc has them.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stubs_.push_back(std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(options.server.ToString(), *credentials, arguments)));
  }
  for (int32_t i = 0; i < options.sessions; ++i) {
    const auto channel = static_cast<size_t>(int64_t{i} * options.channels / options.sessions);
    streams_.push_back(std::make_unique<Stream>(*this, *stubs_[channel], i));
  }
}

Crowd::~Crowd() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
  }
  for (const std::unique_ptr<Stream>& stream : streams_) stream->Cancel();
  MutexLock lock(&mu_);
  while (open_ > 0) changed_.Wait(&mu_);
}

void Crowd::Open(int32_t session) {
  {
    MutexLock lock(&mu_);
    ++open_;
  }
  streams_[static_cast<size_t>(session)]->Open();
}

void Crowd::Send(int32_t session, const grpc::ByteBuffer& message) {
  streams_[static_cast<size_t>(session)]->Send(message);
}

void Crowd::OnDone(int32_t session, const absl::Status& status) {
  bool expected = false;
  {
    MutexLock lock(&mu_);
    expected = ending_;
  }
  if (!expected) on_end_(session, status);
  // Under the lock: the destructor, which waits for it, must not free the variable in between.
  MutexLock lock(&mu_);
  --open_;
  changed_.NotifyAll();
}

void Arrivals::Reset(int64_t wanted) {
  MutexLock lock(&mu_);
  wanted_ = missing_ = wanted;
}

void Arrivals::Arrive(int64_t count) {
  MutexLock lock(&mu_);
  missing_ -= count;
  if (missing_ > 0) return;
  last_ = Clock::Real().Now();
  changed_.NotifyAll();
}

void Arrivals::Fail(const absl::Status& why) {
  MutexLock lock(&mu_);
  if (failed_.ok()) failed_ = why;
  changed_.NotifyAll();
}

absl::StatusOr<absl::Time> Arrivals::Await(absl::Duration timeout) {
  const absl::Time deadline = Clock::Real().Now() + timeout;
  MutexLock lock(&mu_);
  while (failed_.ok() && missing_ > 0) {
    if (!changed_.WaitFor(&mu_, deadline - Clock::Real().Now()) && missing_ > 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          wanted_ - missing_, " of ", wanted_, " came within ", absl::FormatDuration(timeout)));
    }
  }
  if (!failed_.ok()) return failed_;
  return last_;
}

}  // namespace coordd::bench
