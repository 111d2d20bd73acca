#include "server/job/kv_state.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/protocol/store.h"

namespace coordd {
namespace {

constexpr absl::string_view kGenerationScope = "gen/";
// Of what is deleted together.
constexpr int64_t kFreedAtOnce = 256;
// Of keys that the calls which have waited ask for: a few milliseconds.
constexpr int64_t kHeldInTurn = 4096;

int64_t CostOf(const KeyTable::Sum& sum) { return sum.bytes + sum.keys * kKeyBytes; }

}  // namespace

// Keys that nobody can ask for any more.
class KvState::Gone final : public Remains {
 public:
  Gone(KeyTable table, BudgetShare share) : table_(std::move(table)), share_(std::move(share)) {}

  int64_t Free(int64_t most) override {
    const int64_t freed = table_.FreeFirst(most);
    share_.Set(CostOf(table_.sum()));
    return freed;
  }

 private:
  KeyTable table_;
  BudgetShare share_;
};

KvState::KvState(std::string job, const KvBounds& bounds, Epoch epoch)
    : job_(std::move(job)), bounds_(bounds), epoch_(epoch) {}

std::string KvState::GenerationPrefix(Generation generation) {
  return absl::StrCat(kGenerationScope, ToInt(generation), "/");
}

void KvState::Open(Generation generation) {
  generation_ = generation;
  open_ = true;
}

std::unique_ptr<Remains> KvState::Close(Generation generation, Effects& effects) {
  if (!open_ || generation != generation_) return nullptr;
  open_ = false;
  const std::string prefix = GenerationPrefix(generation);
  for (auto it = waiting_.lower_bound(prefix);
       it != waiting_.end() && absl::StartsWith(it->first, prefix); it = waiting_.erase(it)) {
    const absl::Status over = CheckScope(it->first);
    for (CallId call : it->second) {
      effects.outgoing.push_back(StoreReply{.call = call, .status = over});
      key_of_call_.erase(call);
    }
  }
  return Bury(kGenerationScope);
}

// Of all keys with the prefix; null: there is none.
std::unique_ptr<Remains> KvState::Bury(absl::string_view prefix) {
  KeyTable taken = table_.Take(prefix);
  if (taken.sum().keys == 0) return nullptr;
  BudgetShare share = share_.Split(CostOf(taken.sum()));
  return std::make_unique<Gone>(std::move(taken), std::move(share));
}

void KvState::NoteChange(absl::string_view key, int64_t by) {
  if (by != 0 && !absl::StartsWith(key, kGenerationScope)) counts_.Change(key, by);
  share_.Set(CostOf(table_.sum()));
}

void KvState::Call(const StoreCall& call, const Turn& turn) {
  if (!awaits()) return CarryOut(call, turn);
  const absl::Status held = held_->Hold(job_, call);
  if (!held.ok()) turn.effects.outgoing.push_back(StoreReply{.call = call.call, .status = held});
}

void KvState::CarryOut(const StoreCall& call, const Turn& turn) {
  Effects& effects = turn.effects;
  if (const auto* get = std::get_if<StoreGet>(&call.request)) {
    Get(call.call, *get, effects);
    return;
  }
  StoreReply reply{.call = call.call, .status = absl::OkStatus()};
  Effects woken;  // behind the reply: the setter is answered first
  if (const auto* look = std::get_if<StoreLook>(&call.request)) {
    reply.status = Look(*look, reply.found);
    reply.version = StoreVersion{epoch_, writes_};
  } else if (const auto* count = std::get_if<StoreCount>(&call.request)) {
    reply.number = Count(count->prefix);
  } else {
    reply.status = Write(call.request, reply, {turn.now, woken, turn.graveyard});
  }
  effects.outgoing.push_back(std::move(reply));
  for (Outgoing& out : woken.outgoing) effects.outgoing.push_back(std::move(out));
}

absl::Status KvState::Write(const decltype(StoreCall::request)& request, StoreReply& reply,
                            const Turn& turn) {
  Effects& effects = turn.effects;
  if (const auto* set = std::get_if<StoreSet>(&request)) {
    COORDD_RETURN_IF_ERROR(Set(*set, effects));
  } else if (const auto* add = std::get_if<StoreAdd>(&request)) {
    COORDD_RETURN_IF_ERROR(Add(*add, reply.number, effects));
  } else if (const auto* prefix = std::get_if<StoreDeletePrefix>(&request)) {
    COORDD_RETURN_IF_ERROR(DeletePrefix(prefix->prefix, reply.number, turn));
  } else if (const auto* compare = std::get_if<StoreCompareSet>(&request)) {
    COORDD_RETURN_IF_ERROR(CompareSet(*compare, reply, effects));
    // Where the value was the desired one already, its caller hears the same, and relies on it.
    if (reply.found.front() != compare->desired) return absl::OkStatus();
  } else if (const auto* append = std::get_if<StoreAppend>(&request)) {
    COORDD_RETURN_IF_ERROR(Append(*append, reply, effects));
  } else if (const auto* one = std::get_if<StoreDelete>(&request)) {
    COORDD_RETURN_IF_ERROR(Delete(*one, reply.number));
  }
  reply.version = StoreVersion{epoch_, ++writes_};
  return absl::OkStatus();
}

void KvState::Restore(std::map<std::string, std::string> values, const Turn& turn) {
  if (!awaits()) return;
  for (auto& [key, value] : values) {
    if (!CheckKey(key).ok() || !Store::CheckValue(key, value.size()).ok()) continue;
    if (CheckRoom(key, value.size()).ok()) Put(key, std::move(value), turn.effects);
  }
}

void KvState::GoOn(const Turn& turn) {
  if (!awaits()) return;
  int64_t done = 0;
  while (!held_->calls().empty() && done < kHeldInTurn) {
    const StoreCall call = held_->TakeFirst();
    const auto* const look = std::get_if<StoreLook>(&call.request);
    done += look == nullptr ? 1 : 1 + static_cast<int64_t>(look->keys.size());
    CarryOut(call, turn);
  }
  if (held_->calls().empty()) held_.reset();
}

void KvState::Cancel(CallId call) {
  if (awaits()) held_->Cancel(call);
  const auto it = key_of_call_.find(call);
  if (it == key_of_call_.end()) return;
  const auto calls = waiting_.find(it->second);
  std::erase(calls->second, call);
  if (calls->second.empty()) waiting_.erase(calls);
  key_of_call_.erase(it);
}

std::unique_ptr<Remains> KvState::Clear(const absl::Status& why, Effects& effects) {
  for (const auto& [call, key] : key_of_call_) {
    effects.outgoing.push_back(StoreReply{.call = call, .status = why});
  }
  if (awaits()) {
    for (const auto& [id, call] : held_->calls())
      effects.outgoing.push_back(StoreReply{.call = id, .status = why});
  }
  held_.reset();
  counts_.Clear();
  key_of_call_.clear();
  waiting_.clear();
  open_ = false;
  return Bury("");
}

absl::Status KvState::CheckKey(absl::string_view key) const {
  COORDD_RETURN_IF_ERROR(Store::CheckKey(key));
  return CheckScope(key);
}

absl::Status KvState::CheckScope(absl::string_view key) const {
  absl::string_view rest = key;
  if (!absl::ConsumePrefix(&rest, kGenerationScope)) return absl::OkStatus();
  int64_t number = 0;
  const size_t slash = rest.find('/');
  if (slash == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, slash), &number) ||
      absl::StrCat(number) != rest.substr(0, slash)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key ", key, ": expected gen/<generation>/<name>, as all keys that start with gen/"));
  }
  if (open_ && number == ToInt(generation_)) return absl::OkStatus();
  const bool is_over = number <= ToInt(generation_);
  return absl::FailedPreconditionError(absl::StrCat(
      "key ", key, ": generation ", number, " of job ", job_,
      is_over ? " is over" : " does not exist yet",
      open_ ? absl::StrCat(", the current one is ", ToInt(generation_))
            : absl::StrCat(", the last one was ", ToInt(generation_), " and none is current")));
}

absl::Status KvState::CheckRoom(absl::string_view key, size_t value_bytes) const {
  const std::string* stored = table_.Find(key);
  const bool is_new = stored == nullptr;
  if (is_new && keys() >= bounds_.max_keys) {
    return absl::ResourceExhaustedError(absl::StrCat("key ", key, ": job ", job_, " has ",
                                                     Counted(keys(), "key"),
                                                     " already, the most that it may have"));
  }
  const int64_t before = is_new ? 0 : static_cast<int64_t>(key.size() + stored->size());
  const int64_t after = static_cast<int64_t>(key.size() + value_bytes);
  if (table_.sum().bytes - before + after > bounds_.max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("key ", key, ": job ", job_, " stores ", table_.sum().bytes,
                     " bytes, the most that it may is ", bounds_.max_bytes));
  }
  if (!share_.HasRoomFor(after - before + (is_new ? kKeyBytes : 0))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("key ", key, ": ", share_.NoRoom(absl::StrCat("job ", job_))));
  }
  return absl::OkStatus();
}

absl::Status KvState::Set(const StoreSet& set, Effects& effects) {
  COORDD_RETURN_IF_ERROR(CheckKey(set.key));
  COORDD_RETURN_IF_ERROR(Store::CheckValue(set.key, set.value.size()));
  COORDD_RETURN_IF_ERROR(CheckRoom(set.key, set.value.size()));
  Put(set.key, set.value, effects);
  return absl::OkStatus();
}

absl::Status KvState::Add(const StoreAdd& add, int64_t& sum, Effects& effects) {
  COORDD_RETURN_IF_ERROR(CheckKey(add.key));
  const std::string* stored = table_.Find(add.key);
  int64_t before = 0;
  if (stored != nullptr && !absl::SimpleAtoi(*stored, &before)) {
    return absl::InvalidArgumentError(absl::StrCat("key ", add.key, " does not hold a number"));
  }
  int64_t after = 0;
  if (__builtin_add_overflow(before, add.delta, &after)) {
    return absl::InvalidArgumentError(
        absl::StrCat("key ", add.key, ": ", before, " plus ", add.delta, " does not fit 64 bits"));
  }
  std::string value = absl::StrCat(after);
  COORDD_RETURN_IF_ERROR(CheckRoom(add.key, value.size()));
  sum = after;
  Put(add.key, std::move(value), effects);
  return absl::OkStatus();
}

// Of many keys most are freed in later turns: a million of them were a turn of a second, in which
// no other job was heard.
absl::Status KvState::DeletePrefix(absl::string_view prefix, int64_t& deleted, const Turn& turn) {
  // "gen/" alone is no key, but as a prefix it means the keys of the current generation.
  if (prefix != kGenerationScope) COORDD_RETURN_IF_ERROR(CheckKey(prefix));
  deleted = keys();
  std::unique_ptr<Remains> gone = Bury(prefix);
  deleted -= keys();
  if (deleted > 0) counts_.Clear();
  // What is little has room again for what comes next.
  if (deleted > kFreedAtOnce) turn.Bury(std::move(gone));
  return absl::OkStatus();
}

absl::Status KvState::CompareSet(const StoreCompareSet& request, StoreReply& reply,
                                 Effects& effects) {
  COORDD_RETURN_IF_ERROR(CheckKey(request.key));
  COORDD_RETURN_IF_ERROR(Store::CheckValue(request.key, request.desired.size()));
  const std::string* stored = table_.Find(request.key);
  const bool is_expected =
      stored == nullptr ? !request.expected.has_value() : request.expected == *stored;
  if (is_expected) {
    COORDD_RETURN_IF_ERROR(CheckRoom(request.key, request.desired.size()));
    Put(request.key, request.desired, effects);
    reply.found.emplace_back(request.desired);
  } else if (stored == nullptr) {
    reply.found.emplace_back();
  } else {
    reply.found.emplace_back(*stored);
  }
  return absl::OkStatus();
}

absl::Status KvState::Append(const StoreAppend& append, StoreReply& reply, Effects& effects) {
  COORDD_RETURN_IF_ERROR(CheckKey(append.key));
  const std::string* stored = table_.Find(append.key);
  std::string value = stored == nullptr ? append.value : *stored + append.value;
  COORDD_RETURN_IF_ERROR(Store::CheckValue(append.key, value.size()));
  COORDD_RETURN_IF_ERROR(CheckRoom(append.key, value.size()));
  reply.number = static_cast<int64_t>(value.size());
  if (append.wants_value) reply.value = value;
  Put(append.key, std::move(value), effects);
  return absl::OkStatus();
}

absl::Status KvState::Delete(const StoreDelete& request, int64_t& deleted) {
  COORDD_RETURN_IF_ERROR(CheckKey(request.key));
  if (!table_.Erase(request.key)) return absl::OkStatus();
  NoteChange(request.key, -1);
  deleted = 1;
  return absl::OkStatus();
}

absl::Status KvState::Look(const StoreLook& look,
                           std::vector<std::optional<std::string>>& found) const {
  if (look.keys.size() > Store::kMaxLookKeys) {
    return absl::InvalidArgumentError(absl::StrCat(look.keys.size(),
                                                   " keys in one look, expected at "
                                                   "most ",
                                                   Store::kMaxLookKeys));
  }
  int64_t bytes = 0;
  for (const std::string& key : look.keys) {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    const std::string* stored = table_.Find(key);
    if (stored != nullptr && look.values) bytes += static_cast<int64_t>(stored->size());
    if (bytes > Store::kMaxLookBytes && !found.empty()) break;
    if (stored == nullptr) {
      found.emplace_back();
    } else {
      found.emplace_back(look.values ? *stored : "");
    }
  }
  return absl::OkStatus();
}

int64_t KvState::Count(absl::string_view prefix) {
  if (const auto known = counts_.Find(prefix)) return *known;
  const int64_t count = CountNow(prefix);
  counts_.Keep(prefix, count);
  return count;
}

int64_t KvState::CountNow(absl::string_view prefix) const {
  if (absl::StartsWith(prefix, kGenerationScope)) return 0;
  const int64_t count = table_.SumOf(prefix).keys;
  const bool has_generation = absl::StartsWith(kGenerationScope, prefix);
  return count - (has_generation ? table_.SumOf(kGenerationScope).keys : 0);
}

void KvState::Get(CallId call, const StoreGet& get, Effects& effects) {
  StoreReply reply{.call = call, .status = CheckKey(get.key)};
  const std::string* stored = table_.Find(get.key);
  if (reply.status.ok() && stored == nullptr) {
    if (waiting() < bounds_.max_waiting) {
      waiting_[get.key].push_back(call);
      key_of_call_[call] = get.key;
      return;
    }
    reply.status = absl::ResourceExhaustedError(
        absl::StrCat("key ", get.key, ": ", Counted(waiting(), "call"), " of job ", job_,
                     waiting() == 1 ? " waits" : " wait", " for keys already, the most that may"));
  }
  if (reply.status.ok()) reply.value = *stored;
  effects.outgoing.push_back(std::move(reply));
}

void KvState::Put(const std::string& key, std::string value, Effects& effects) {
  const int64_t before = keys();
  const std::string& stored = table_.Put(key, std::move(value));
  NoteChange(key, keys() - before);
  const auto calls = waiting_.find(key);
  if (calls == waiting_.end()) return;
  // Thousands may have waited for it.
  constexpr size_t kCopiedBytes = 1024;
  std::shared_ptr<const std::string> shared;
  if (stored.size() > kCopiedBytes && calls->second.size() > 1)
    shared = std::make_shared<const std::string>(stored);
  for (CallId call : calls->second) {
    StoreReply reply{.call = call, .status = absl::OkStatus(), .shared = shared};
    if (shared == nullptr) reply.value = stored;
    effects.outgoing.push_back(std::move(reply));
    key_of_call_.erase(call);
  }
  waiting_.erase(calls);
}

absl::Status KvState::CheckConsistency() const {
  COORDD_RETURN_IF_ERROR(table_.CheckConsistency());
  absl::Status status;
  table_.ForEach([&](const std::string& key, const std::string& /*value*/) {
    if (waiting_.contains(key)) {
      status = absl::InternalError(absl::StrCat("a call waits for key ", key, ", which is set"));
    }
    if (!CheckScope(key).ok()) {
      status = absl::InternalError(absl::StrCat("key ", key, " has outlived its generation"));
    }
  });
  COORDD_RETURN_IF_ERROR(status);
  if (share_.bytes() != CostOf(table_.sum()))
    return absl::InternalError("what the keys take is miscounted");
  if (awaits() && keys() > 0)
    return absl::InternalError("there are keys before the members have brought theirs");
  for (const auto& [prefix, count] : counts_.all())
    if (count != CountNow(prefix)) return absl::InternalError("keys of a prefix are miscounted");
  size_t calls = 0;
  for (const auto& [key, waiting] : waiting_) {
    calls += waiting.size();
    if (!CheckScope(key).ok()) {
      return absl::InternalError(absl::StrCat("a call waits for key ", key, " in vain"));
    }
    for (CallId call : waiting) {
      const auto it = key_of_call_.find(call);
      if (it == key_of_call_.end() || it->second != key) {
        return absl::InternalError(absl::StrCat("a call waits unindexed for key ", key));
      }
    }
  }
  if (calls != key_of_call_.size()) return absl::InternalError("waiting calls are miscounted");
  return absl::OkStatus();
}

}  // namespace coordd
