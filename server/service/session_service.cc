#include "server/service/session_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/one_line.h"
#include "server/door/caller.h"

namespace coordd {

// Inside the service its method hides the class of the same name.
using WorkerSession = Session;

namespace {

// Ranks of a node may be in another order than their streams were opened in.
MemberRuns RunsOf(std::vector<int32_t>::iterator begin, std::vector<int32_t>::iterator end) {
  if (!std::is_sorted(begin, end)) std::sort(begin, end);
  MemberRuns runs;
  for (; begin != end; ++begin) AddMember(*begin, &runs);
  return runs;
}

}  // namespace

SessionService::SessionService(Clock& clock, ReadBytes& read, const ConnectionTable& connections,
                               Inbox& inbox, ServerMetrics& metrics, AuditLog& audit,
                               const Options& options)
    : clock_(clock),
      read_(read),
      connections_(connections),
      inbox_(inbox),
      metrics_(metrics),
      audit_(audit),
      metrics_addresses_(options.any_metrics_address, clock),
      unread_(options.unread) {}

SessionService::Reactor* SessionService::Session(grpc::CallbackServerContext* context) {
  return Open(/*of_node=*/false, context);
}

SessionService::Reactor* SessionService::NodeSession(grpc::CallbackServerContext* context) {
  return Open(/*of_node=*/true, context);
}

SessionService::Reactor* SessionService::Open(bool of_node, grpc::CallbackServerContext* context) {
  const absl::Time deadline = clock_.Now() + kTimeout;
  const auto kind = of_node ? WorkerSession::Kind::kNode : WorkerSession::Kind::kWorker;
  std::shared_ptr<WorkerSession> session;
  auto caller = CallerOf(*context, connections_);
  if (caller.ok() && of_node) {
    auto relay = std::make_shared<Caller>(**caller);
    relay->of_node = true;
    caller = std::move(relay);
  }
  absl::Status refuse = caller.status();
  {
    MutexLock lock(&mu_);
    if (refuse.ok()) refuse = refuse_;
    if (refuse.ok()) refuse = HasRoomLocked((*caller)->identity);
    const SessionId id{++last_id_};
    session = std::make_shared<WorkerSession>(
        kind, id, StreamOf(context, caller.value_or(nullptr)), inbox_, metrics_,
        WorkerSession::Calls{.done = [this](SessionId gone) { Forget(gone); },
                             .full = [this](const WorkerSession& session) { NoteFull(session); }});
    sessions_.emplace(id, session);
    ++of_identity_[session->owner()];
    node_sessions_ += of_node ? 1 : 0;
    watches_.push_back({deadline, id, Watch::kJoin});
  }
  session->Begin(session);
  if (!refuse.ok()) session->Close(refuse);
  inbox_.Wake();  // there is a new deadline
  return session.get();
}

WorkerSession::Stream SessionService::StreamOf(grpc::CallbackServerContext* context,
                                               std::shared_ptr<const Caller> caller) {
  WorkerSession::Stream stream{.context = context,
                               .read = read_.Of(context->peer()),
                               .caller = std::move(caller),
                               .audit = audit_,
                               .metrics_addresses = metrics_addresses_,
                               .unread = nullptr};
  if (stream.caller == nullptr) return stream;
  stream.unread = unread_.Of(*stream.caller);
  stream.account = std::hash<std::string>()(AccountOf(*stream.caller));
  return stream;
}

absl::Status SessionService::HasRoomLocked(const Identity& who) {
  if (sessions_.size() >= kMaxSessions)
    return absl::ResourceExhaustedError(absl::StrCat("coordd has ", kMaxSessions, " sessions"));
  const auto own = of_identity_.find(ToString(who));
  if (who.role == Role::kOperator || own == of_identity_.end() || own->second < kMaxSessionsOfOne)
    return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(own->first, " has ", own->second,
                   " sessions at this coordd already, as many as one may have"));
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
  const auto counted = of_identity_.find(gone->owner());
  if (--counted->second == 0) of_identity_.erase(counted);
  node_sessions_ -= gone->is_node() ? 1 : 0;
  sessions_.erase(found);
}

void SessionService::WatchClosing(SessionId id) {
  const absl::Time deadline = clock_.Now() + kTimeout;
  MutexLock lock(&mu_);
  if (sessions_.count(id) != 0) watches_.push_back({deadline, id, Watch::kClose});
}

// Receivers in one node session that stand together are sent the message once.
void SessionService::CarryOut(const Deliver& deliver) {
  struct Receivers {
    SessionId carrier;
    std::ptrdiff_t begin = 0, end = 0;  // of `members`; none: the stream's own worker
    std::shared_ptr<WorkerSession> session = nullptr;
  };
  std::vector<Receivers> receivers;
  std::vector<int32_t> members;
  members.reserve(deliver.to.size());
  for (SessionId id : deliver.to) {
    const SessionId carrier = NodeMembers::StreamOf(id);
    const bool is_member = NodeMembers::IsMember(id);
    const auto at = static_cast<std::ptrdiff_t>(members.size());
    if (!is_member || receivers.empty() || receivers.back().carrier != carrier)
      receivers.push_back({carrier, at, at});
    if (!is_member) continue;
    members.push_back(NodeMembers::MemberOf(id));
    receivers.back().end = at + 1;
  }
  WorkerSession* any = nullptr;
  {
    MutexLock lock(&mu_);
    for (Receivers& one : receivers) {
      const auto found = sessions_.find(one.carrier);
      if (found != sessions_.end()) one.session = found->second;
      if (one.session != nullptr) any = one.session.get();
    }
  }
  if (any == nullptr) return;
  const grpc::Slice body = any->NewBody(deliver.message->ByteSizeLong());
  // A slice is immutable to its readers; this one has none yet.
  deliver.message->SerializeWithCachedSizesToArray(const_cast<uint8_t*>(body.begin()));
  // Nodes of one size, whose workers came in order, have the same members.
  std::vector<int32_t> before;
  WorkerSession::Framed framed;
  for (Receivers& one : receivers) {
    if (one.session == nullptr) continue;
    const bool is_node = one.begin < one.end;
    const auto begin = members.begin() + one.begin, end = members.begin() + one.end;
    if (is_node && !std::equal(begin, end, before.begin(), before.end())) {
      before.assign(begin, end);
      framed = WorkerSession::FrameFor(RunsOf(begin, end), body);
    }
    if (!is_node) {
      one.session->Send(body);
      continue;
    }
    one.session->SendTo(framed);
    FlushLater(std::move(one.session));
  }
}

void SessionService::FlushLater(std::shared_ptr<WorkerSession> session) {
  if (unflushed_.empty() || unflushed_.back() != session) unflushed_.push_back(std::move(session));
}

void SessionService::NoteFull(const WorkerSession& session) {
  metrics_.OnSessionDropped(ServerMetrics::Drop::kOutboxFull);
  WatchClosing(session.id());
  std::optional<std::string> more;
  {
    MutexLock lock(&mu_);
    more = full_limit_.Pass(clock_.Now());
  }
  if (!more.has_value()) return;
  COORDD_LOG(kWarning, "the session of ", session.caller(),
             " is closed: ", session.CloseStatus().message(), *more);
}

// A member's host and process number are its own word: whose connection it was stands here.
void SessionService::NoteWrong(const WorkerSession& session, const absl::Status& why) {
  std::optional<std::string> more;
  {
    MutexLock lock(&mu_);
    more = wrong_limit_.Pass(clock_.Now());
  }
  if (!more.has_value()) return;
  COORDD_LOG(kWarning, "the session of ", session.caller(),
             " has said what it may not: ", OneLine(why.message()), *more);
}

void SessionService::CarryOut(const CloseSession& close) {
  std::shared_ptr<WorkerSession> session = Find(NodeMembers::StreamOf(close.session));
  if (session == nullptr) return;
  if (absl::IsInvalidArgument(close.status)) NoteWrong(*session, close.status);
  if (NodeMembers::IsMember(close.session)) {
    MemberRuns members;
    AddMember(NodeMembers::MemberOf(close.session), &members);
    session->CloseMembers(members, close.status);
    FlushLater(std::move(session));
    return;
  }
  session->Close(close.status);
  WatchClosing(close.session);
}

void SessionService::Flush() {
  for (const std::shared_ptr<WorkerSession>& session : std::exchange(unflushed_, {}))
    session->Flush();
}

void SessionService::OnSessionEnded(SessionId id) {
  if (const std::shared_ptr<WorkerSession> session = Find(id); session != nullptr)
    session->Close(absl::OkStatus());
}

void SessionService::Tick(absl::Time now) {
  Flush();
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

size_t SessionService::node_sessions() const {
  MutexLock lock(&mu_);
  return node_sessions_;
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
