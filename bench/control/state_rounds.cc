#include "bench/control/state_rounds.h"

#include <time.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "bench/control/messages.h"
#include "bench/control/statistics.h"
#include "common/base/status_macros.h"
#include "server/job/coordinator_state.h"
#include "server/model/server_options.h"

namespace coordd::bench {
namespace {

constexpr int32_t kTurn = 256;  // messages that coordd's thread finds at once

// A CoordinatorState and what its thread does with it.
class Turns {
 public:
  explicit Turns(const ServerOptions& options) : state_(options, Epoch{1}) {}

  void Step(SessionId session, Inbound& message) {
    std::get<SessionMessage>(message).session = session;
    state_.Step(message, now_, effects_);
    if (++stepped_ == kTurn) End();
  }

  // The end of a turn: what it has decided is counted and dropped.
  void End() {
    now_ += absl::Microseconds(100);
    state_.Tick(now_, effects_);
    for (const Outgoing& out : effects_.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr) continue;
      if (deliver->message->has_membership()) memberships_ += deliver->to.size();
      if (deliver->message->has_plan()) plans_ += deliver->to.size();
    }
    effects_ = Effects();
    stepped_ = 0;
  }

  size_t memberships() const { return memberships_; }
  size_t plans() const { return plans_; }

 private:
  CoordinatorState state_;
  Effects effects_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  int32_t stepped_ = 0;
  size_t memberships_ = 0, plans_ = 0;
};

// Of this thread: what else the machine does costs it nothing.
absl::Duration CpuTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

absl::Status Expect(absl::string_view what, size_t found, int64_t expected) {
  if (found == static_cast<size_t>(expected)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(found, " ", what, ", expected ", expected));
}

absl::StatusOr<nlohmann::json> MeasureOne(int32_t ranks, const StateOptions& options) {
  const JobShape shape{.nodes = std::max(1, ranks / options.ranks_per_node),
                       .ranks_per_node = std::min(ranks, options.ranks_per_node)};
  ServerOptions server;
  server.lease = absl::Hours(1);
  server.stall_warning = absl::Hours(1);
  server.stall_abort = absl::Hours(2);
  Turns turns(server);

  absl::Duration start = CpuTime();
  for (int32_t rank = 0; rank < shape.ranks(); ++rank) {
    Inbound join(SessionMessage{.session = {}, .message = JoinMessage("state", shape, rank)});
    turns.Step(SessionId{rank + 1}, join);
  }
  turns.End();
  const absl::Duration joining = CpuTime() - start;
  COORDD_RETURN_IF_ERROR(Expect("memberships", turns.memberships(), shape.ranks()));

  Inbound ready(SessionMessage{
      .session = {}, .message = ReadyMessage(Epoch{1}, Generation{1}, 0, options.tensors)});
  std::vector<double> us;
  for (int32_t round = 0; round <= options.rounds; ++round) {
    start = CpuTime();
    for (int32_t rank = 0; rank < shape.ranks(); ++rank) turns.Step(SessionId{rank + 1}, ready);
    turns.End();
    if (round > 0) us.push_back(absl::ToDoubleMicroseconds(CpuTime() - start));
  }
  COORDD_RETURN_IF_ERROR(
      Expect("plans", turns.plans(), int64_t{shape.ranks()} * (options.rounds + 1)));
  const double median = Median(us);
  return nlohmann::json{{"ranks", shape.ranks()},
                        {"tensors", options.tensors},
                        {"join_us_per_rank", absl::ToDoubleMicroseconds(joining) / shape.ranks()},
                        {"round_p50_us", median},
                        {"round_p99_us", Quantile(us, 0.99)},
                        {"round_us_per_rank", median / shape.ranks()}};
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureState(const StateOptions& options) {
  nlohmann::json result = {{"sizes", nlohmann::json::array()}};
  std::vector<double> sizes, costs, joins;
  for (const int32_t ranks : options.ranks) {
    COORDD_ASSIGN_OR_RETURN(nlohmann::json one, MeasureOne(ranks, options));
    sizes.push_back(one["ranks"]);
    costs.push_back(one["round_p50_us"]);
    joins.push_back(one["join_us_per_rank"].get<double>() * one["ranks"].get<double>());
    result["sizes"].push_back(std::move(one));
  }
  result["exponent"] = Exponent(sizes, costs);
  result["join_exponent"] = Exponent(sizes, joins);
  return result;
}

}  // namespace coordd::bench
