// What the members of a job bring of its store to a coordd that was started again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/model/byte_budget.h"

namespace coordd {

// PURE. Not thread-safe. Of each key the last write counts that any of them reports, by its
// version; what was deleted by it, or had no room with its writer, is not there. Reports without a
// version count where there is none with one: the first value of a key, or the sum of all sums.
//
// Whoever comes back says what it has written behind its Join, whatever has become of its
// generation by then: so this may go on a moment longer than the return of the members.
class StoreReturn {
 public:
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
  bool Complete(absl::FunctionRef<bool(SessionId)> is_there) const;
  // The values of the store. `is_there`: who has gone may have come again, and said the same.
  std::map<std::string, std::string> End(absl::FunctionRef<bool(SessionId)> is_there);
  void Abandon();

 private:
  struct Last {
    StoreVersion version;
    std::optional<std::string> value = {};  // nullopt: it has none
  };
  static int64_t BytesOf(const std::string& key, const Last& last);
  bool HasRoomFor(int64_t more) const;
  void Change(int64_t keys, int64_t bytes);
  void Take(const std::string& key, Last last);

  int64_t max_bytes_;
  bool under_way_ = false;
  bool full_ = false;  // nothing more is taken, lest what is older stands for it
  int64_t bytes_ = 0;
  int64_t keys_ = 0;  // all that are remembered
  BudgetShare share_;
  std::map<SessionId, bool> reported_;  // by who has come: whether that is all
  std::map<std::string, Last> last_;
  std::map<std::string, StoreVersion> deleted_prefixes_;
  std::map<SessionId, std::vector<v1::StoredKey>> without_version_;
};

}  // namespace coordd
