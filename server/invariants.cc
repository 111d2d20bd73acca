#include "server/invariants.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

absl::Status Broken(const absl::AlphaNum& a, const absl::AlphaNum& b = "",
                    const absl::AlphaNum& c = "", const absl::AlphaNum& d = "") {
  return absl::InternalError(absl::StrCat(a, b, c, d));
}

bool SameRuns(const std::vector<v1::NodeRun>& a,
              const google::protobuf::RepeatedPtrField<v1::NodeRun>& b) {
  if (static_cast<int>(a.size()) != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const v1::NodeRun& other = b.Get(static_cast<int>(i));
    if (a[i].nodes() != other.nodes() || a[i].ranks_per_node() != other.ranks_per_node()) {
      return false;
    }
  }
  return true;
}

// A rank's place must follow from the node runs.
bool PlaceFollows(const v1::Membership& m) {
  int32_t next = 0;
  int32_t cross_rank = 0;
  int32_t cross_size = 0;
  int32_t local_rank = -1;
  int32_t local_size = 0;
  for (const v1::NodeRun& run : m.nodes()) {
    for (int32_t node = 0; node < run.nodes(); ++node) {
      if (next <= m.rank() && m.rank() < next + run.ranks_per_node()) {
        local_rank = m.rank() - next;
        local_size = run.ranks_per_node();
        cross_rank = cross_size;
      }
      if (m.local_rank() < run.ranks_per_node()) ++cross_size;
      next += run.ranks_per_node();
    }
  }
  return next == m.size() && local_rank == m.local_rank() && local_size == m.local_size() &&
         cross_rank == m.cross_rank() && cross_size == m.cross_size();
}

}  // namespace

void HistoryChecker::Saw(const Inbound& in) {
  if (const auto* message = std::get_if<SessionMessage>(&in)) {
    SawMessage(message->session, message->message);
  } else if (const auto* ended = std::get_if<SessionEnded>(&in)) {
    sessions_.erase(ended->session);
    closed_.erase(ended->session);
  } else if (const auto* call = std::get_if<StoreCall>(&in)) {
    calls_.insert(call->call);
  } else if (const auto* cancelled = std::get_if<CallCancelled>(&in)) {
    calls_.erase(cancelled->call);
  }
}

void HistoryChecker::SawMessage(SessionId session, const v1::WorkerMessage& message) {
  if (closed_.contains(session)) return;
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) {
    if (message.has_join()) sessions_[session].job = message.join().job();
    return;
  }
  Member& member = it->second;
  const bool is_current = message.generation() == ToInt(member.generation) &&
                          message.epoch() == member.epoch && member.rank >= 0;
  if (!is_current || generations_[{member.job, member.generation}].ended) return;
  for (const v1::TensorSpec& tensor : message.tensors_ready().tensors()) {
    ++member.open[tensor.name()];
  }
}

absl::Status HistoryChecker::Saw(const Effects& effects) {
  announced_.clear();
  for (const Outgoing& out : effects.outgoing) {
    if (!broken_.ok()) return broken_;
    if (const auto* deliver = std::get_if<Deliver>(&out)) {
      if (deliver->to.empty()) broken_ = Broken("a message to nobody");
      for (SessionId session : deliver->to) {
        if (broken_.ok()) broken_ = SawDelivery(session, *deliver->message);
      }
    } else if (const auto* close = std::get_if<CloseSession>(&out)) {
      if (!closed_.insert(close->session).second) broken_ = Broken("a session is closed twice");
      sessions_.erase(close->session);
    } else if (calls_.erase(std::get<StoreReply>(out).call) == 0) {
      broken_ = Broken("an answer to a call that does not wait for one");
    }
  }
  for (const GenerationId& id : announced_) {
    if (broken_.ok()) broken_ = CheckComplete(id);
  }
  return broken_;
}

absl::Status HistoryChecker::SawDelivery(SessionId session, const v1::CoordinatorMessage& message) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return Broken("a message to a session that is closed or unknown");
  Member& member = it->second;
  if (message.has_membership()) return SawMembership(session, member, message);
  if (message.generation() != ToInt(member.generation)) {
    return Broken("a message of generation ", message.generation(), " to a member of ",
                  ToInt(member.generation));
  }
  if (message.has_plan()) return SawPlan(member, message.plan());
  if (message.has_tensor_failures()) return SawFailures(member, message.tensor_failures());
  if (message.has_abort()) generations_[{member.job, member.generation}].ended = true;
  if (message.has_waiting() && member.rank >= 0) return Broken("Waiting to a member");
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawMembership(SessionId session, Member& member,
                                           const v1::CoordinatorMessage& message) {
  const v1::Membership& m = message.membership();
  const GenerationId id{member.job, Generation{message.generation()}};
  if (member.rank >= 0) return Broken("a second Membership for one session");
  Generation& newest = newest_[member.job];
  const bool is_new = !generations_.contains(id);
  if (is_new && id.second <= newest) {
    return Broken("generation ", message.generation(), " follows ", ToInt(newest));
  }
  if (!is_new && !announced_.contains(id)) return Broken("a member joins a generation late");
  newest = id.second;
  announced_.insert(id);
  GenerationRecord& generation = generations_[id];
  if (is_new) {
    generation.size = m.size();
    generation.runs = {m.nodes().begin(), m.nodes().end()};
  }
  if (generation.size != m.size() || !SameRuns(generation.runs, m.nodes())) {
    return Broken("members disagree on the size or the nodes");
  }
  if (m.rank() < 0 || m.rank() >= m.size()) return Broken("rank ", m.rank(), " of ", m.size());
  if (!generation.session_of_rank.try_emplace(m.rank(), session).second) {
    return Broken("rank ", m.rank(), " is given twice");
  }
  if (!PlaceFollows(m)) return Broken("the place of rank ", m.rank(), " contradicts the nodes");
  member.epoch = message.epoch();
  member.generation = id.second;
  member.rank = m.rank();
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawPlan(Member& member, const v1::CollectivePlan& plan) {
  GenerationRecord& generation = generations_[{member.job, member.generation}];
  if (generation.ended) return Broken("a plan in a generation that has ended");
  for (const v1::FusedBatch& batch : plan.batches()) {
    if (batch.sequence() != ++member.last_batch) return Broken("batch numbers with a gap");
    const std::vector<std::string> tensors(batch.tensors().begin(), batch.tensors().end());
    if (tensors.empty()) return Broken("an empty batch");
    const size_t index = static_cast<size_t>(batch.sequence() - 1);
    if (index == generation.batches.size()) generation.batches.push_back(tensors);
    if (index > generation.batches.size() || generation.batches[index] != tensors) {
      return Broken("batch ", batch.sequence(), " differs between ranks");
    }
    for (const std::string& name : tensors) {
      if (--member.open[name] < 0) {
        return Broken("tensor ", name, " is planned, but not submitted by rank ", member.rank);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawFailures(Member& member, const v1::TensorFailures& failures) {
  if (failures.failures().empty()) return Broken("no failures in TensorFailures");
  for (const v1::TensorFailure& failure : failures.failures()) {
    if (failure.code() == 0 || failure.message().empty()) {
      return Broken("tensor ", failure.name(), " fails without saying why");
    }
    int64_t& open = member.open[failure.name()];
    if (--open < 0) {
      return Broken("tensor ", failure.name(), " fails without a submission of rank ", member.rank);
    }
  }
  return absl::OkStatus();
}

absl::Status HistoryChecker::CheckComplete(const GenerationId& id) const {
  const GenerationRecord& generation = generations_.at(id);
  if (static_cast<int32_t>(generation.session_of_rank.size()) == generation.size) {
    return absl::OkStatus();
  }
  return Broken("generation ", ToInt(id.second), " has ranks that nobody holds");
}

}  // namespace coordd
