// What the workers of a simulated job write into its store: nothing that a worker was told is lost
// with coordd, as long as the worker comes back; and no value is there again that was overwritten
// or deleted since.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/random.h"
#include "common/protocol/written_keys.h"
#include "server/model/effects.h"
#include "tests/sim/coordd_model.h"

namespace coordd {

class StoreSim {
 public:
  // Mistakes of the workers.
  struct Bugs {
    bool no_versions = false;         // worker 0 does not say when it has written
    bool late_answers_count = false;  // an answer of a coordd that is gone by now
  };
  StoreSim(uint64_t seed, size_t workers, CoorddModel& coordd, const Bugs& bugs)
      : random_(seed * 2 + 1), coordd_(coordd), bugs_(bugs), workers_(workers) {}

  // Something that may happen in the store. `calls`: a worker that may be told of its call;
  // `stays`: one that is there, and will be.
  struct Who {
    std::function<bool(int32_t)> calls, stays;
  };
  absl::Status Step(const Who& who, bool& happened);
  // What a worker sends behind its Join.
  std::optional<v1::WorkerMessage> ReportOf(int32_t w, const v1::Resume& resume);
  absl::Status OnReply(const StoreReply& reply, const Who& who);
  void OnCrash();
  void OnGone(int32_t w);
  void OnJobEnded();  // whoever is in the next one of its name begins with nothing
  absl::Status CheckEnd() const;

  int64_t acknowledged() const { return acknowledged_; }
  int64_t late() const { return late_; }  // answers that came behind the worker's next report
  int64_t seen_again() const { return seen_again_; }  // keys that a later coordd has

 private:
  using Value = std::optional<std::string>;  // nullopt: no such key
  struct Call {
    CallId id;
    StoreCall call;
    int64_t reports = 0;  // that the worker had made when it was sent
    std::optional<StoreReply> answer;
  };
  struct Worker {
    WrittenKeys written;
    int64_t reports = 0;
    std::optional<Call> call;
    std::map<std::string, StoreVersion> last;  // by key: of its writes that were acknowledged
    std::map<std::string, int64_t> added;      // likewise, in all
  };
  Worker& At(int32_t w) { return workers_[static_cast<size_t>(w)]; }
  absl::Status Begin(int32_t w);
  void Answer(Worker& worker);
  void Take(Worker& worker, const Call& call);
  static std::string KeyOf(const StoreCall& call);
  // The key's value was this, as an answer shows.
  absl::Status Saw(const std::string& key, const Value& value, const Who& who);

  Random random_;
  CoorddModel& coordd_;
  const Bugs bugs_;
  std::vector<Worker> workers_;
  int64_t last_id_ = int64_t{1} << 40;
  std::map<CallId, std::pair<int32_t, StoreCall>> calls_;  // without an answer, and whose they are
  std::map<std::string, Value> now_;                       // as far as this coordd has shown it
  std::map<std::string, std::map<StoreVersion, Value>> history_;
  int64_t acknowledged_ = 0, late_ = 0, seen_again_ = 0;
};

}  // namespace coordd
