#include "server/session_service.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {

// Inside the service its method hides the class of the same name.
using WorkerSession = Session;

SessionService::SessionService(Clock& clock, Inbox& inbox, ServerMetrics& metrics)
    : clock_(clock), inbox_(inbox), metrics_(metrics) {}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* SessionService::Session(
    grpc::CallbackServerContext* context) {
  const absl::Time deadline = clock_.Now() + kTimeout;
  std::shared_ptr<WorkerSession> session;
  absl::Status refuse;
  {
    MutexLock lock(&mu_);
    refuse = refuse_;
    if (refuse.ok() && sessions_.size() >= kMaxSessions)
      refuse = absl::ResourceExhaustedError(absl::StrCat("coordd has ", kMaxSessions, " sessions"));
    const SessionId id{++last_id_};
    session = std::make_shared<WorkerSession>(id, context, inbox_, metrics_,
                                              [this](SessionId gone) { Forget(gone); });
    sessions_.emplace(id, session);
    watches_.push_back({deadline, id, Watch::kJoin});
  }
  session->Begin(session);
  if (!refuse.ok()) session->Close(refuse);
  inbox_.Wake();  // there is a new deadline
  return session.get();
}

std::shared_ptr<WorkerSession> SessionService::Find(SessionId id) const {
  MutexLock lock(&mu_);
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second;
}

void SessionService::Forget(SessionId id) {
  std::shared_ptr<WorkerSession> gone;  // destroyed after the lock
  MutexLock lock(&mu_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  gone = std::move(found->second);
  sessions_.erase(found);
}

void SessionService::WatchClosing(SessionId id) {
  const absl::Time deadline = clock_.Now() + kTimeout;
  MutexLock lock(&mu_);
  if (sessions_.count(id) != 0) watches_.push_back({deadline, id, Watch::kClose});
}

void SessionService::CarryOut(const Deliver& deliver) {
  std::vector<std::shared_ptr<WorkerSession>> receivers;
  receivers.reserve(deliver.to.size());
  {
    MutexLock lock(&mu_);
    for (SessionId id : deliver.to) {
      const auto found = sessions_.find(id);
      if (found != sessions_.end()) receivers.push_back(found->second);
    }
  }
  if (receivers.empty()) return;
  const size_t size = deliver.message->ByteSizeLong();
  const grpc::Slice body(size);
  // A slice is immutable to its readers; this one has none yet.
  deliver.message->SerializeWithCachedSizesToArray(const_cast<uint8_t*>(body.begin()));
  for (const std::shared_ptr<WorkerSession>& receiver : receivers) {
    if (receiver->Send(body)) continue;
    metrics_.OnSessionDropped(ServerMetrics::Drop::kOutboxFull);
    WatchClosing(receiver->id());
  }
}

void SessionService::CarryOut(const CloseSession& close) {
  const std::shared_ptr<WorkerSession> session = Find(close.session);
  if (session == nullptr) return;
  session->Close(close.status);
  WatchClosing(close.session);
}

void SessionService::OnSessionEnded(SessionId id) {
  if (const std::shared_ptr<WorkerSession> session = Find(id); session != nullptr)
    session->Close(absl::OkStatus());
}

void SessionService::Tick(absl::Time now) {
  std::vector<Watch> due;
  {
    MutexLock lock(&mu_);
    while (!watches_.empty() && watches_.front().deadline <= now) {
      due.push_back(watches_.front());
      watches_.pop_front();
    }
  }
  for (const Watch& watch : due) {
    const std::shared_ptr<WorkerSession> session = Find(watch.id);
    if (session == nullptr) continue;
    if (watch.what == Watch::kClose) {
      session->Break();
    } else if (!session->joined() && !session->closing()) {
      metrics_.OnSessionDropped(ServerMetrics::Drop::kNoJoin);
      session->Close(absl::InvalidArgumentError(absl::StrCat(
          "no Join came within ", absl::FormatDuration(kTimeout), " of the stream's start")));
      WatchClosing(watch.id);
    }
  }
}

absl::Time SessionService::NextDeadline() const {
  MutexLock lock(&mu_);
  return watches_.empty() ? absl::InfiniteFuture() : watches_.front().deadline;
}

size_t SessionService::size() const {
  MutexLock lock(&mu_);
  return sessions_.size();
}

void SessionService::CloseAll(const absl::Status& status) {
  std::vector<std::shared_ptr<WorkerSession>> all;
  {
    MutexLock lock(&mu_);
    refuse_ = status;
    for (const auto& [id, session] : sessions_) all.push_back(session);
  }
  for (const std::shared_ptr<WorkerSession>& session : all) session->Close(status);
}

}  // namespace coordd
