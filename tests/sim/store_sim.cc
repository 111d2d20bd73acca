#include "tests/sim/store_sim.h"

#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "tests/server/support/builders.h"

namespace coordd {
namespace {

std::string TextOf(const std::optional<std::string>& value) {
  return value.has_value() ? absl::StrCat("\"", *value, "\"") : "none";
}

}  // namespace

std::string StoreSim::KeyOf(const StoreCall& call) {
  return std::visit(
      [](const auto& request) -> std::string {
        if constexpr (requires { request.key; }) {
          return request.key;
        } else if constexpr (requires { request.keys; }) {
          return request.keys.front();
        } else {
          return request.prefix;
        }
      },
      call.request);
}

absl::Status StoreSim::Step(const Who& who, bool& happened) {
  const int32_t w = static_cast<int32_t>(random_.Below(workers_.size()));
  Worker& worker = At(w);
  happened = false;
  if (random_.Below(4) != 0 || !who.calls(w)) return absl::OkStatus();
  if (worker.call.has_value()) {
    if (worker.call->answer.has_value()) Answer(worker);
    return absl::OkStatus();
  }
  if (!coordd_.alive()) return absl::OkStatus();
  happened = true;
  return Begin(w);
}

absl::Status StoreSim::Begin(int32_t w) {
  Worker& worker = At(w);
  const std::string number = absl::StrCat("n", random_.Below(2));
  const std::string key = absl::StrCat("k", random_.Below(3));
  StoreCall call{CallId{++last_id_}, "train", JoinOf("w0").token(), StoreLook{{key}, true}};
  const std::string value = absl::StrCat(last_id_ - (int64_t{1} << 40), ";");
  switch (random_.Below(8)) {
    case 0:
    case 1:
    case 2:
      call.request = StoreAdd{number, 1};
      break;
    case 3:
      call.request = StoreSet{key, value};
      break;
    case 4:
      call.request = StoreDelete{key};
      break;
    case 5:
      call.request = StoreAppend{key, value, /*wants_value=*/true};
      break;
    case 6: {
      StoreCompareSet compare{key, std::nullopt, value};
      if (now_.contains(key)) compare.expected = now_.at(key);
      call.request = compare;
      break;
    }
    default:
      break;
  }
  calls_[call.call] = {w, call};
  worker.call = Call{call.call, call, worker.reports, std::nullopt};
  return coordd_.Step(call);
}

absl::Status StoreSim::OnReply(const StoreReply& reply, const Who& who) {
  const auto answered = calls_.extract(reply.call);
  if (answered.empty()) return absl::OkStatus();
  const auto& [w, call] = answered.mapped();
  // Who is gone hears nothing, and has written all the same.
  if (At(w).call.has_value() && At(w).call->id == reply.call) At(w).call->answer = reply;
  if (!reply.status.ok()) return absl::OkStatus();
  const std::string key = KeyOf(call);
  Value value = now_.contains(key) ? now_.at(key) : Value();
  if (std::holds_alternative<StoreLook>(call.request)) {
    value = reply.found.front();
    COORDD_RETURN_IF_ERROR(Saw(key, value, who));
  } else if (const auto* set = std::get_if<StoreSet>(&call.request)) {
    value = set->value;
  } else if (const auto* add = std::get_if<StoreAdd>(&call.request)) {
    const int64_t before = reply.number - add->delta;
    COORDD_RETURN_IF_ERROR(Saw(key, before == 0 ? Value() : Value(absl::StrCat(before)), who));
    value = absl::StrCat(reply.number);
  } else if (const auto* append = std::get_if<StoreAppend>(&call.request)) {
    absl::string_view before = reply.value;
    if (!absl::ConsumeSuffix(&before, append->value)) return Wrong("a value without its end");
    COORDD_RETURN_IF_ERROR(Saw(key, before.empty() ? Value() : Value(std::string(before)), who));
    value = reply.value;
  } else if (const auto* compare = std::get_if<StoreCompareSet>(&call.request)) {
    const bool is_set = reply.found.front() == compare->desired;
    COORDD_RETURN_IF_ERROR(Saw(key, is_set ? compare->expected : reply.found.front(), who));
    value = reply.found.front();
  } else if (reply.number == 0) {
    COORDD_RETURN_IF_ERROR(Saw(key, std::nullopt, who));
    value.reset();
  } else {
    value.reset();
  }
  now_[key] = value;
  if (reply.version.has_value() && !std::holds_alternative<StoreLook>(call.request) &&
      !history_[key].emplace(*reply.version, value).second)
    return Wrong("two writes of key ", key, " have one version");
  return absl::OkStatus();
}

absl::Status StoreSim::Saw(const std::string& key, const Value& value, const Who& who) {
  if (const auto known = now_.find(key); known != now_.end()) {
    if (known->second == value) return absl::OkStatus();
    return Wrong("key ", key, " was ", TextOf(known->second), " and is ", TextOf(value));
  }
  ++seen_again_;
  StoreVersion last;
  int64_t added = 0;
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (!who.stays(static_cast<int32_t>(w))) continue;
    if (workers_[w].last.contains(key)) last = std::max(last, workers_[w].last.at(key));
    if (workers_[w].added.contains(key)) added += workers_[w].added.at(key);
  }
  int64_t number = 0;
  if (absl::StartsWith(key, "n") && value.has_value() && !absl::SimpleAtoi(*value, &number))
    return Wrong("key ", key, " is ", TextOf(value));
  if (number < added)
    return Wrong("key ", key, " is ", number, ", those who are there have added ", added);
  const std::map<StoreVersion, Value>& writes = history_[key];
  for (auto write = writes.lower_bound(last); write != writes.end(); ++write)
    if (write->second == value) return absl::OkStatus();
  if (last == StoreVersion() && !value.has_value()) return absl::OkStatus();
  return Wrong("key ", key, " is ", TextOf(value),
               " after coordd was started again, which it was not at or behind the write ",
               last.number, " of epoch ", ToInt(last.epoch));
}

void StoreSim::Answer(Worker& worker) {
  const Call& call = *worker.call;
  if (call.answer->status.ok() && call.answer->version.has_value() &&
      call.reports != worker.reports && !bugs_.late_answers_count) {
    if (!coordd_.alive()) return;  // it asks which coordd is there, and waits
    ++late_;
    if (ToInt(call.answer->version->epoch) != coordd_.epoch()) {
      worker.call.reset();  // its caller hears that nobody knows
      return;
    }
  }
  const Call taken = *std::exchange(worker.call, std::nullopt);
  if (taken.answer->status.ok()) Take(worker, taken);
}

void StoreSim::Take(Worker& worker, const Call& call) {
  const StoreReply& reply = *call.answer;
  const std::string key = KeyOf(call.call);
  if (std::holds_alternative<StoreLook>(call.call.request) || !reply.version.has_value()) return;
  if (const auto* set = std::get_if<StoreSet>(&call.call.request)) {
    worker.written.Set(key, set->value, reply.version);
  } else if (const auto* add = std::get_if<StoreAdd>(&call.call.request)) {
    worker.written.Add(key, add->delta, reply.number, reply.version);
    worker.added[key] += add->delta;
  } else if (std::holds_alternative<StoreAppend>(call.call.request)) {
    worker.written.Append(key, reply.value, reply.version);
  } else if (const auto* compare = std::get_if<StoreCompareSet>(&call.call.request)) {
    worker.written.Set(key, compare->desired, reply.version);
  } else {
    worker.written.Delete(key, reply.version);
  }
  worker.last[key] = *reply.version;
  ++acknowledged_;
}

std::optional<v1::WorkerMessage> StoreSim::ReportOf(int32_t w, const v1::Resume& resume) {
  Worker& worker = At(w);
  ++worker.reports;
  WrittenReport written = worker.written.Report();
  if (written.stored.empty() && written.deleted.empty()) return std::nullopt;
  v1::WorkerMessage message;
  message.set_epoch(resume.epoch());
  message.set_generation(resume.generation());
  v1::ResumeReport& report = *message.mutable_resume_report();
  report.set_more(true);
  for (v1::StoredKey& key : written.stored) {
    if (bugs_.no_versions && w == 0) key.clear_version();
    *report.add_stored() = std::move(key);
  }
  for (v1::DeletedKey& key : written.deleted) *report.add_deleted() = std::move(key);
  return message;
}

// Of what it had answered some is under way still, and arrives.
void StoreSim::OnCrash() {
  now_.clear();
  calls_.clear();
  for (Worker& worker : workers_) {
    if (!worker.call.has_value()) continue;
    if (!worker.call->answer.has_value() || random_.Below(3) == 0) worker.call.reset();
  }
}

void StoreSim::OnGone(int32_t w) { At(w).call.reset(); }

void StoreSim::OnJobEnded() {
  now_.clear();
  history_.clear();
  calls_.clear();
  for (Worker& worker : workers_) worker = Worker();
}

absl::Status StoreSim::CheckEnd() const {
  if (!coordd_.alive() || coordd_.Job().phase() != v1::JOB_PHASE_RUNNING) return absl::OkStatus();
  for (size_t w = 0; w < workers_.size(); ++w)
    if (workers_[w].call.has_value() && !workers_[w].call->answer.has_value())
      return Wrong("a call of the store of worker ", w, " is not answered");
  return absl::OkStatus();
}

}  // namespace coordd
