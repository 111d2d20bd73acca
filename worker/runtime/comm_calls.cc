#include "worker/runtime/comm_calls.h"

#include <algorithm>
#include <utility>

#include "common/base/utf8.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

// Not worth a word before.
constexpr absl::Duration kWorthAWord = absl::Seconds(1);

std::string Word(const std::string& text) {
  return ShortenedText(PrintableText(text), kMaxCommWaitBytes);
}

}  // namespace

CommCalls::Account::Account(std::shared_ptr<CommCalls> all) : all_(std::move(all)) {
  MutexLock lock(&all_->mu_);
  all_->accounts_.insert(this);
}

CommCalls::Account::~Account() {
  MutexLock lock(&all_->mu_);
  all_->accounts_.erase(this);
  all_->closed_.calls += calls_.load(std::memory_order_relaxed);
  all_->closed_.bytes += bytes_.load(std::memory_order_relaxed);
}

void CommCalls::Account::Waits(WaitingCall call) {
  MutexLock lock(&mu_);
  call_ = std::move(call);
  waits_.store(true, std::memory_order_relaxed);
}

void CommCalls::Account::Clear() {
  MutexLock lock(&mu_);
  waits_.store(false, std::memory_order_relaxed);
}

CommCalls::Totals CommCalls::totals() const {
  MutexLock lock(&mu_);
  Totals totals = closed_;
  totals.calls += messages_.load(std::memory_order_relaxed);
  totals.bytes += message_bytes_.load(std::memory_order_relaxed);
  for (const Account* account : accounts_) {
    totals.calls += account->calls_.load(std::memory_order_relaxed);
    totals.bytes += account->bytes_.load(std::memory_order_relaxed);
  }
  return totals;
}

std::vector<WaitingCall> CommCalls::Waiting() const {
  std::vector<WaitingCall> waiting;
  MutexLock lock(&mu_);
  for (Account* account : accounts_) {
    if (!account->waits_.load(std::memory_order_relaxed)) continue;
    MutexLock its(&account->mu_);
    if (account->waits_.load(std::memory_order_relaxed)) waiting.push_back(account->call_);
  }
  return waiting;
}

void TellOfWaits(std::vector<WaitingCall> waiting, absl::Time now, v1::Heartbeat& heartbeat) {
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const WaitingCall& a, const WaitingCall& b) { return a.since < b.since; });
  std::set<std::string> told;
  for (const WaitingCall& call : waiting) {
    if (heartbeat.comm_waits_size() == kMaxCommWaits || now - call.since < kWorthAWord) return;
    if (!told.insert(call.comm).second) continue;
    v1::CommWait& wait = *heartbeat.add_comm_waits();
    wait.set_comm(Word(call.comm));
    wait.set_call(Word(call.call));
    ToProto(now - call.since, wait.mutable_waiting());
    for (const int32_t rank : call.missing) {
      if (wait.missing_ranks_size() == kMaxCommWaitRanks) break;
      wait.add_missing_ranks(rank);
    }
    if (call.needs_all_of.has_value()) wait.set_process_set(ToInt(*call.needs_all_of));
  }
}

}  // namespace coordd
