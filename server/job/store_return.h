// What the members of a job bring of its store to a coordd that was started again.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/job/deleted_prefixes.h"
#include "server/model/byte_budget.h"
#include "server/model/graveyard.h"

namespace coordd {

// PURE. Not thread-safe. Of each key the last write counts that any of them reports, by its
// version; what was deleted by it, or had no room with its writer, is not there. Reports without a
// version count where there is none with one: the first value of a key, or the sum of all sums.
//
// Whoever comes back says what it has written behind its Join, whatever has become of its
// generation by then: so this may go on a moment longer than the return of the members. What it
// comes to is taken in parts, since it may be a million keys.
class StoreReturn {
 public:
  // Of keys, prefixes and reports: about 5 ms of a busy processor.
  static constexpr int64_t kPiecesATurn = 4096;

  // What is brought may have so many bytes in all, with what is dropped of it; of two that write a
  // key only one value is kept. The rest is ignored.
  explicit StoreReturn(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // It is counted for the owner of the job, from now on, as what is in the store is.
  void Bind(std::shared_ptr<ByteBudget> budget) { share_.Bind(std::move(budget)); }
  void Begin() { under_way_ = true; }
  bool under_way() const { return under_way_; }
  void Came(SessionId session);  // with a report behind its Join
  void Report(SessionId session, const v1::ResumeReport& part);
  // All of those who are there have reported.
  bool Complete(absl::FunctionRef<bool(SessionId)> is_there);
  // No more is reported. `is_there`: who has gone may have come again, and said the same.
  void End(absl::FunctionRef<bool(SessionId)> is_there);
  // Whether it has ended, now or before.
  bool EndIfComplete(absl::FunctionRef<bool(SessionId)> is_there) {
    if (under_way_ && Complete(is_there)) End(is_there);
    return !under_way_;
  }
  // Since then not all of the values were taken.
  bool ending() const { return ending_; }
  // The next values of the store, for which so much is looked at: perhaps none.
  std::map<std::string, std::string> Take(int64_t pieces = kPiecesATurn);
  // Null: it had nothing.
  std::unique_ptr<Remains> Abandon();

 private:
  struct Last {
    StoreVersion version;
    std::optional<std::string> value = {};  // nullopt: it has none
  };
  // What those say who know no versions: a value, or else the sum of theirs.
  struct Merged {
    std::optional<std::string> value = {};
    uint64_t sum = 0;  // two's complement, as a counter that overflows
  };
  struct WithoutVersion {
    bool counts = false;
    std::deque<v1::StoredKey> keys = {};
  };
  using Values = std::map<std::string, std::string>;
  struct Brought {
    std::map<std::string, Last> last;
    DeletedPrefixes deleted_prefixes;
    std::map<SessionId, WithoutVersion> without_version;
    std::map<std::string, Merged> merged;

    bool empty() const;
  };
  class Dropped;

  static int64_t BytesOf(const std::string& key, const Last& last);
  bool HasRoomFor(int64_t more) const;
  void Change(int64_t keys, int64_t bytes);
  void TakeLast(const std::string& key, Last last);
  void Merge(const v1::StoredKey& key);
  // Each goes on until nothing is left, of what it is about or of `left`.
  void TakeReported(int64_t& left);
  void TakeVersioned(int64_t& left, Values& values);
  void TakeMerged(int64_t& left, Values& values);

  int64_t max_bytes_;
  bool under_way_ = false, ending_ = false;
  bool full_ = false;   // nothing more is taken, lest what is older stands for it
  bool walks_ = false;  // over the keys that are being taken
  int64_t bytes_ = 0;
  int64_t keys_ = 0;  // all that are remembered
  BudgetShare share_;
  std::set<SessionId> reporting_;  // who has come and has not said all, among them who has gone
  Brought brought_;
};

}  // namespace coordd
