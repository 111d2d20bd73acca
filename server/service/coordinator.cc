#include "server/service/coordinator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded_queue.h"
#include "common/base/thread.h"
#include "server/metrics/server_metrics.h"
#include "server/model/job_record.h"
#include "server/service/caller_shares.h"

namespace coordd {

Coordinator::Coordinator(const ServerOptions& options, Epoch epoch, Clock& clock,
                         ServerMetrics& metrics)
    : clock_(clock), metrics_(metrics), inbox_(clock), events_(epoch), state_(options, epoch) {}

Coordinator::Coordinator(const ServerOptions& options, const RestoredState& restored, Clock& clock,
                         ServerMetrics& metrics)
    : clock_(clock),
      metrics_(metrics),
      inbox_(clock),
      events_(restored.epoch),
      state_(options, restored, clock.Now(), at_start_) {}

Coordinator::~Coordinator() { Stop("coordd is stopping"); }

void Coordinator::Start(CoordinatorOutlets outlets) {
  outlets_ = std::move(outlets);
  inbox_.SetTurn([this] { TakeTurn(); });
  thread_ = StartThread("coordinator", [this] { Run(); });
}

void Coordinator::Stop(const std::string& reason, absl::Duration resume_within) {
  if (std::exchange(stopped_, true) || !thread_.joinable()) return;
  inbox_.Push(Inbound(StopRequested{reason, resume_within}));
  inbox_.Close();
  thread_.join();
}

void Coordinator::Run() {
  while (inbox_.AwaitTurn()) {
    TakeTurn();
    for (const std::function<void()>& resume : inbox_.TakeWaiting()) resume();
  }
  // Nobody resumes those that were still waiting: the sessions end with the server.
}

void Coordinator::TakeTurn() {
  inbox_.TakeAll(batch_);
  Turn(batch_);
  const std::vector<MembersReports> reports = state_.WhoHasReported();
  inbox_.EndTurn(reports, std::min(state_.NextDeadline(), outlets_.next_deadline()));
}

void Coordinator::Turn(std::vector<Inbox::Received>& batch) {
  const absl::Time now = clock_.Now();
  Effects effects = std::exchange(at_start_, {});
  std::vector<SessionId> ended;
  // When it came, since it may have waited for others; but time never goes back.
  absl::Time at;
  const auto step = [&](const Inbound& in) {
    Step(in, at, effects);
    if (const auto* end = std::get_if<SessionEnded>(&in)) ended.push_back(end->session);
  };
  for (Inbox::Received& received : batch) {
    at = std::clamp(received.at, last_turn_, now);
    Inbox::Item& item = received.item;
    if (const auto* in = std::get_if<Inbound>(&item)) {
      step(*in);
    } else if (const auto* together = std::get_if<Inbox::Together>(&item)) {
      for (const Inbound& one : **together) step(one);
    } else {
      std::get<Query>(item)(state_, now);
    }
  }
  state_.Tick(now, effects);
  last_turn_ = now;
  CarryOut(effects);
  for (SessionId session : ended) outlets_.session_ended(session);
  outlets_.tick(now);
  // Who waits for the decisions has them: now what is only to be known of them.
  Tell(effects, now);
  batch.clear();
  metrics_.OnTurn(clock_.Now() - now);  // measures, decides nothing
}

// Calls of a store may take long, and their answers much memory: those are not kept until the turn
// is over.
void Coordinator::Step(const Inbound& in, absl::Time at, Effects& effects) {
  const auto* call = std::get_if<StoreCall>(&in);
  if (const auto* exits = std::get_if<ExitsReported>(&in); exits != nullptr)
    return StepExits(*exits, in, at, effects);
  if (call == nullptr || call->caller == nullptr || outlets_.shares == nullptr) {
    state_.Step(in, at, effects);
    return;
  }
  Effects own;
  const absl::Status had = outlets_.shares->InTurn(*call->caller, {Name(call->request), call->job},
                                                   [&] { state_.Step(in, at, own); });
  if (!had.ok()) own.outgoing.emplace_back(StoreReply{.call = call->call, .status = had});
  for (Outgoing& out : own.outgoing) {
    if (auto* reply = std::get_if<StoreReply>(&out)) {
      outlets_.store_reply(std::move(*reply));
    } else {
      effects.outgoing.push_back(std::move(out));
    }
  }
  std::move(own.persist.begin(), own.persist.end(), std::back_inserter(effects.persist));
  std::move(own.events.begin(), own.events.end(), std::back_inserter(effects.events));
}

// A thousand in each of a thousand calls take long, too.
void Coordinator::StepExits(const ExitsReported& exits, const Inbound& in, absl::Time at,
                            Effects& effects) {
  const auto step = [&] { state_.Step(in, at, effects); };
  if (exits.caller == nullptr || outlets_.shares == nullptr) return step();
  const absl::Status had =
      outlets_.shares->InTurn(*exits.caller, {Name(Call::kReportExits), exits.request.job()}, step);
  if (!had.ok()) effects.outgoing.emplace_back(ExitsAnswer{.call = exits.call, .status = had});
}

void Coordinator::CarryOut(Effects& effects) {
  for (Outgoing& out : effects.outgoing) {
    if (const auto* deliver = std::get_if<Deliver>(&out)) {
      outlets_.deliver(*deliver);
    } else if (const auto* close = std::get_if<CloseSession>(&out)) {
      outlets_.close_session(*close);
    } else if (auto* reply = std::get_if<StoreReply>(&out)) {
      outlets_.store_reply(std::move(*reply));
    } else if (auto* answer = std::get_if<TraceAnswer>(&out)) {
      outlets_.trace_answer(std::move(*answer));
    } else if (auto* exits = std::get_if<ExitsAnswer>(&out)) {
      outlets_.exits_answer(std::move(*exits));
    } else {
      outlets_.dismiss_answer(std::get<DismissAnswer>(std::move(out)));
    }
  }
  for (Persist& persist : effects.persist) outlets_.persist(std::move(persist));
}

void Coordinator::Tell(const Effects& effects, absl::Time now) {
  lines_.Write(
      effects.events, [this](const std::string& job) { return state_.OwnerOf(job); }, now);
  for (const Event& event : effects.events) {
    events_.Add(event, state_.OwnerOf(event.job), now);
    metrics_.OnEvent(event);
    outlets_.event(event);
  }
}

template <typename Answer>
absl::StatusOr<Answer> Coordinator::Ask(
    std::function<Answer(const CoordinatorState&, absl::Time)> question, absl::Time deadline) {
  auto reply = std::make_shared<BoundedQueue<Answer>>(1, clock_);
  Query query = [question = std::move(question), reply](const CoordinatorState& state,
                                                        absl::Time now) {
    reply->TryPush(question(state, now));  // one query, one place
  };
  if (!inbox_.Offer(std::move(query)))
    return absl::UnavailableError("coordd is stopping, or has more to do than it can");
  std::vector<Answer> taken = reply->TakeAll(deadline);
  if (taken.empty()) return absl::UnavailableError("coordd did not answer in time");
  return std::move(taken.front());
}

absl::StatusOr<v1::ServerState> Coordinator::Describe(absl::Time deadline, absl::Duration* took) {
  struct Described {
    v1::ServerState state;
    std::string last;
    absl::Duration took;
  };
  v1::ServerState all;
  absl::Duration together;
  for (std::string after;;) {
    COORDD_ASSIGN_OR_RETURN(
        Described described,
        Ask<Described>(
            [after, &clock = clock_](const CoordinatorState& state, absl::Time now) {
              Described made;
              const absl::Time begun = clock.Now();
              made.last = state.DescribeNext(after, now, &made.state);
              made.took = clock.Now() - begun;
              return made;
            },
            deadline));
    together += described.took;
    if (all.jobs().empty()) {
      all = std::move(described.state);
    } else {
      for (v1::JobState& job : *described.state.mutable_jobs()) *all.add_jobs() = std::move(job);
    }
    after = std::move(described.last);
    if (after.empty()) break;
  }
  if (took != nullptr) *took = together;
  return all;
}

absl::Status Coordinator::Answers(absl::Time deadline) {
  return Ask<bool>([](const CoordinatorState&, absl::Time) { return true; }, deadline).status();
}

}  // namespace coordd
