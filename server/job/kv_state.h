// The key-value service of one job: how data-plane addresses and NCCL ids travel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "server/job/held_calls.h"
#include "server/job/key_table.h"
#include "server/job/prefix_counts.h"
#include "server/model/byte_budget.h"
#include "server/model/effects.h"
#include "server/model/graveyard.h"
#include "server/model/turn.h"

namespace coordd {

struct KvBounds {
  int64_t max_keys = 1 << 20;
  int64_t max_bytes = int64_t{256} << 20;  // keys and values together
  int64_t max_waiting = 1 << 20;           // Gets that wait: eight per rank at the largest job
  HeldCalls::Bounds held = {};             // until the store is whole
};

// PURE. Not thread-safe.
//
// Keys that start with `gen/<g>/` belong to generation g: they can be used from Open(g) to
// Close(g), and then they are gone; Gets that wait for one are answered with FAILED_PRECONDITION.
// All others live as long as the job. Each write has a version, with which it is answered.
class KvState {
 public:
  KvState(std::string job, const KvBounds& bounds, Epoch epoch = {});

  static std::string GenerationPrefix(Generation generation);  // "gen/7/"

  // What ends leaves what takes long to free; null: nothing.
  void Open(Generation generation);
  std::unique_ptr<Remains> Close(Generation generation, Effects& effects);

  // What it had is with the members, who come back: until Restore, all calls wait. REQUIRES: it is
  // empty.
  void Await() { held_.emplace(bounds_.held); }
  bool awaits() const { return held_.has_value(); }
  // Some of what the members have brought, but for keys of other generations and what there is no
  // room for. Nothing, unless it awaits that.
  void Restore(std::map<std::string, std::string> values, const Turn& turn);
  // That was all: some of the calls that wait are carried out. It awaits nothing any more once none
  // is left.
  void GoOn(const Turn& turn);

  // Answers now, or for a Get of a missing key as soon as it is set. Whatever answers come of it
  // are appended to the turn's effects.
  void Call(const StoreCall& call, const Turn& turn);
  void Cancel(CallId call);  // no answer is wanted any more

  // The job is over: answers whoever waits and forgets everything.
  std::unique_ptr<Remains> Clear(const absl::Status& why, Effects& effects);

  // What its keys take counts there from now on.
  void Bind(std::shared_ptr<ByteBudget> budget) { share_.Bind(std::move(budget)); }
  int64_t keys() const { return table_.sum().keys; }
  int64_t waiting() const {
    return static_cast<int64_t>(key_of_call_.size() + (awaits() ? held_->calls().size() : 0));
  }
  absl::Status CheckConsistency() const;

 private:
  class Gone;

  absl::Status CheckKey(absl::string_view key) const;
  absl::Status CheckScope(absl::string_view key) const;
  absl::Status CheckRoom(absl::string_view key, size_t value_bytes) const;
  absl::Status Set(const StoreSet& set, Effects& effects);
  absl::Status Add(const StoreAdd& add, int64_t& sum, Effects& effects);
  absl::Status DeletePrefix(absl::string_view prefix, int64_t& deleted, const Turn& turn);
  absl::Status CompareSet(const StoreCompareSet& request, StoreReply& reply, Effects& effects);
  absl::Status Append(const StoreAppend& append, StoreReply& reply, Effects& effects);
  absl::Status Delete(const StoreDelete& request, int64_t& deleted);
  absl::Status Look(const StoreLook& look, std::vector<std::optional<std::string>>& found) const;
  int64_t Count(absl::string_view prefix);
  int64_t CountNow(absl::string_view prefix) const;
  void CarryOut(const StoreCall& call, const Turn& turn);
  absl::Status Write(const decltype(StoreCall::request)& request, StoreReply& reply,
                     const Turn& turn);
  void Get(CallId call, const StoreGet& get, Effects& effects);
  std::unique_ptr<Remains> Bury(absl::string_view prefix);
  void Put(const std::string& key, std::string value, Effects& effects);
  void NoteChange(absl::string_view key, int64_t by);

  const std::string job_;
  const KvBounds bounds_;
  const Epoch epoch_;
  int64_t writes_ = 0;     // in this epoch
  Generation generation_;  // the last that was opened; 0: none
  bool open_ = false;
  KeyTable table_;
  BudgetShare share_;    // of the job's owner: of table_
  PrefixCounts counts_;  // without keys of generations
  std::optional<HeldCalls> held_;
  std::map<std::string, std::vector<CallId>> waiting_;  // by key, in order of arrival
  std::map<CallId, std::string> key_of_call_;
};

}  // namespace coordd
