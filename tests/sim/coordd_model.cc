#include "tests/sim/coordd_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {

CoorddModel::CoorddModel(const ServerOptions& options, size_t workers, Random& random, Hooks hooks)
    : options_(options), random_(random), hooks_(std::move(hooks)), streams_(workers) {}

template <typename... Args>
void CoorddModel::Log(const Args&... args) const {
  if (hooks_.log != nullptr)
    hooks_.log(
        absl::StrCat(absl::FormatDuration(now_ - absl::FromUnixSeconds(1'000'000)), " ", args...));
}

absl::Status CoorddModel::Start() {
  COORDD_ASSIGN_OR_RETURN(RestoredState found, ParseRecords({"c0ffee", Epoch{++epoch_}, disk_}));
  if (hooks_.found != nullptr) hooks_.found(found);
  Log("coordd starts in epoch ", epoch_);
  Effects effects;
  state_ = std::make_unique<CoordinatorState>(options_, found, now_, effects);
  history_.SawRestart();
  return Took(effects);
}

void CoorddModel::Crash() {
  Log("coordd dies");
  for (uint64_t more = random_.Below(storing_.size() + 1); more > 0; --more) {
    if (!storing_.front().written) Write(storing_.front().what);
    storing_.pop_front();
  }
  storing_.clear();
  state_.reset();
  broken_.clear();
  lost_.clear();
  for (int32_t worker = 0; worker < static_cast<int32_t>(streams_.size()); ++worker) {
    SimStream& broken = stream(worker);
    const std::deque<v1::CoordinatorMessage> under_way = broken.from_coordd;
    Break(worker);
    broken.closed.reset();
    broken.stale_to_coordd.clear();
    const auto first_lost = under_way.begin() + static_cast<int64_t>(broken.from_coordd.size());
    broken.lost.insert(broken.lost.end(), first_lost, under_way.end());
  }
}

void CoorddModel::Sleep(const std::function<bool(int32_t)>& is_there) {
  Log("coordd sleeps");
  now_ += options_.lease;
  for (int32_t worker = 0; worker < static_cast<int32_t>(streams_.size()); ++worker) {
    const SessionId session = stream(worker).session;
    if (!is_there(worker) || ToInt(session) == 0 || random_.Below(3) == 0) continue;
    broken_.push_back(session);
    Break(worker);
  }
}

void CoorddModel::LoseStreams(const std::function<bool(int32_t)>& through_it) {
  Log("a relay ends");
  std::vector<SessionId> lost;
  for (int32_t worker = 0; worker < static_cast<int32_t>(streams_.size()); ++worker) {
    const SessionId session = stream(worker).session;
    if (ToInt(session) == 0 || is_cut(worker) || !through_it(worker)) continue;
    lost.push_back(session);
    Break(worker);
  }
  if (!lost.empty()) lost_.push_back(std::move(lost));
}

absl::Status CoorddModel::HearOfBrokenStream() {
  if (broken_.empty() || (!lost_.empty() && random_.Below(2) == 0)) {
    const std::vector<SessionId> lost = std::move(lost_.front());
    lost_.pop_front();
    for (SessionId session : lost) ForgetStale(session);
    return Step(StreamsLost{lost, "the relay of node0 was lost"});
  }
  const size_t at = random_.Below(broken_.size());
  const SessionId session = broken_[at];
  broken_.erase(broken_.begin() + static_cast<int64_t>(at));
  ForgetStale(session);
  return Step(SessionEnded{session, "reset"});
}

void CoorddModel::ForgetStale(SessionId session) {
  std::erase_if(stream(worker_of_.at(session)).stale_to_coordd,
                [session](const auto& stale) { return stale.first == session; });
}

absl::Status CoorddModel::Step(const Inbound& in) {
  history_.Saw(in);
  Effects effects;
  state_->Step(in, now_, effects);
  // A turn takes in several messages. Calls of the store leave the rest of the history as it is.
  const bool is_call = std::holds_alternative<StoreCall>(in);
  if (!is_call && random_.Below(2) == 0) state_->Tick(now_, effects);
  return Took(effects);
}

absl::Status CoorddModel::Tick() {
  Effects effects;
  state_->Tick(now_, effects);
  return Took(effects);
}

absl::Status CoorddModel::Read(int32_t worker) {
  SimStream& from = stream(worker);
  const std::optional<v1::WorkerMessage> message = std::move(from.to_coordd.front());
  from.to_coordd.pop_front();
  const SessionId session = from.session;
  if (message.has_value()) {
    Log("worker ", worker, " -> ", message->ShortDebugString());
    return Step(SessionMessage{session, *message});
  }
  Log("the stream of worker ", worker, " ends");
  from.session = SessionId{};
  return Step(SessionEnded{session, "killed"});
}

v1::JobState CoorddModel::Job() const {
  v1::ServerState described;
  state_->Describe("train", now_, &described);
  return described.jobs_size() == 1 ? described.jobs(0) : v1::JobState();
}

absl::Status CoorddModel::Took(const Effects& effects) {
  for (const Event& event : effects.events) {
    Log("event: ", event.text);
    if (event.kind == Event::Kind::kJobEnded && hooks_.job_ended != nullptr) hooks_.job_ended();
  }
  COORDD_RETURN_IF_ERROR(history_.Saw(effects));
  COORDD_RETURN_IF_ERROR(state_->CheckConsistency());
  for (const Outgoing& out : effects.outgoing) {
    if (const auto* deliver = std::get_if<coordd::Deliver>(&out)) {
      for (SessionId session : deliver->to) Deliver(session, *deliver->message);
    } else {
      COORDD_RETURN_IF_ERROR(hooks_.did(out));
    }
  }
  for (const Persist& what : effects.persist) storing_.push_back({what});
  return absl::OkStatus();
}

void CoorddModel::Deliver(SessionId session, const v1::CoordinatorMessage& message) {
  const int32_t worker = worker_of_.at(session);
  SimStream& to = stream(worker);
  v1::CoordinatorMessage copy = message;
  Log("worker ", worker, " <- ", message.ShortDebugString());
  if (!hooks_.said(worker, copy, to.session == session) || to.session != session) return;
  copy.set_sequence(++to.sequence);
  to.from_coordd.push_back(std::move(copy));
}

void CoorddModel::Write(const Persist& what) {
  for (const StateWrite& write : what.writes) {
    if (write.value.has_value()) {
      disk_[write.key] = *write.value;
    } else {
      disk_.erase(write.key);
    }
  }
  if (what.generation == Generation{0}) return;
  epoch_of_[ToInt(what.generation)] = epoch_;
  history_.Saw(Persisted{what.job, what.generation});  // also if nobody hears of it before the end
}

absl::Status CoorddModel::StoreOn() {
  Storing& first = storing_.front();
  const bool is_awaited = first.what.generation != Generation{0} || first.what.call != CallId{0};
  if (hooks_.answers_early && is_awaited && !std::exchange(first.answered, true))
    return Step(Persisted{first.what.job, first.what.generation, {}, first.what.call});
  if (!first.written) {
    Write(first.what);
    first.written = true;
    if (!is_awaited || first.answered) storing_.pop_front();
    return absl::OkStatus();
  }
  const Persist what = std::move(first.what);
  storing_.pop_front();
  return Step(Persisted{what.job, what.generation, {}, what.call});
}

int64_t CoorddModel::epoch_of(int64_t generation) const {
  const auto found = epoch_of_.find(generation);
  return found == epoch_of_.end() ? 0 : found->second;
}

void CoorddModel::Open(int32_t worker, int64_t number) {
  SimStream& opened = stream(worker);
  LeaveBehind(opened);
  opened.to_coordd.clear();
  opened.from_coordd.clear();
  opened.sequence = 0;
  opened.closed.reset();
  opened.number = number;
  if (ToInt(opened.session) != 0)
    (is_cut(worker) ? opened.abandoned : broken_).push_back(opened.session);
  opened.session = SessionId{};
  opened.refused = is_cut(worker);
  opened.ends = !alive() || opened.refused;  // nobody listens
  if (opened.ends) return;
  opened.session = SessionId{++last_session_};
  worker_of_[opened.session] = worker;
}

void CoorddModel::LeaveBehind(SimStream& left) {
  left.stale_from_coordd.clear();  // of two streams ago: nothing is that late
  if (keeps_stale_) {
    for (v1::CoordinatorMessage& again : left.arrived)
      if (random_.Below(2) == 0) left.stale_from_coordd.emplace_back(left.number, std::move(again));
    for (v1::CoordinatorMessage& late : left.from_coordd)
      left.stale_from_coordd.emplace_back(left.number, std::move(late));
  }
  left.arrived.clear();
  for (std::optional<v1::WorkerMessage>& late : left.to_coordd) {
    const bool is_open = keeps_stale_ && ToInt(left.session) != 0;
    if (is_open && late.has_value())
      left.stale_to_coordd.emplace_back(left.session, *std::move(late));
  }
}

bool CoorddModel::HasStale(int32_t worker) const {
  const SimStream& from = streams_[static_cast<size_t>(worker)];
  return alive() && !from.cut_to && !from.stale_to_coordd.empty();
}

absl::Status CoorddModel::ReadStale(int32_t worker) {
  SimStream& from = stream(worker);
  const auto [session, message] = std::move(from.stale_to_coordd.front());
  from.stale_to_coordd.pop_front();
  Log("worker ", worker, " -> (on a stream that it has given up) ", message.ShortDebugString());
  return Step(SessionMessage{session, message});
}

v1::CoordinatorMessage CoorddModel::TakeFor(int32_t worker) {
  constexpr size_t kRepeated = 8;
  SimStream& to = stream(worker);
  v1::CoordinatorMessage message = std::move(to.from_coordd.front());
  to.from_coordd.pop_front();
  if (keeps_stale_) to.arrived.push_back(message);
  if (to.arrived.size() > kRepeated) to.arrived.pop_front();
  return message;
}

void CoorddModel::Send(int32_t worker, v1::WorkerMessage message) {
  if (ToInt(stream(worker).session) != 0) stream(worker).to_coordd.emplace_back(std::move(message));
}

void CoorddModel::SendJoin(int32_t worker, v1::Join join) {
  Open(worker, 0);
  stream(worker).stale_from_coordd.clear();  // who waits reads one stream after the other
  v1::WorkerMessage message;
  *message.mutable_join() = std::move(join);
  Send(worker, std::move(message));
}

void CoorddModel::Close(int32_t worker, const absl::Status& status) {
  SimStream& closed = stream(worker);
  closed.ends = true;
  closed.closed = status;
  closed.to_coordd.clear();
  closed.session = SessionId{};
}

void CoorddModel::Cut(int32_t worker, bool to_coordd, bool from_coordd) {
  Log("worker ", worker, to_coordd ? " does not reach coordd" : "",
      from_coordd ? " is not reached by coordd" : "");
  stream(worker).cut_to = to_coordd;
  stream(worker).cut_from = from_coordd;
}

void CoorddModel::Mend(int32_t worker) {
  Log("the link of worker ", worker, " is whole again");
  SimStream& mended = stream(worker);
  mended.cut_to = mended.cut_from = false;
  broken_.insert(broken_.end(), mended.abandoned.begin(), mended.abandoned.end());
  mended.abandoned.clear();
}

bool CoorddModel::HasNews(int32_t worker) const {
  const SimStream& from = streams_[static_cast<size_t>(worker)];
  return !from.cut_to && !from.to_coordd.empty();
}

bool CoorddModel::HasNewsFor(int32_t worker) const {
  const SimStream& to = streams_[static_cast<size_t>(worker)];
  if (to.cut_from) return to.refused && to.ends;
  return !to.from_coordd.empty() || to.ends;
}

void CoorddModel::Break(int32_t worker) {
  SimStream& broken = stream(worker);
  if (keeps_stale_ && ToInt(broken.session) != 0) {
    for (std::optional<v1::WorkerMessage>& late : broken.to_coordd)
      if (late.has_value()) broken.stale_to_coordd.emplace_back(broken.session, *std::move(late));
  }
  broken.to_coordd.clear();
  broken.from_coordd.resize(random_.Below(broken.from_coordd.size() + 1));
  broken.ends = broken.ends || ToInt(broken.session) != 0;
  broken.session = SessionId{};
}

}  // namespace coordd
