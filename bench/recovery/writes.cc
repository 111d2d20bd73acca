#include "bench/recovery/writes.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/control/crowd.h"
#include "bench/control/messages.h"
#include "bench/control/statistics.h"
#include "bench/recovery/lasting.h"
#include "bench/recovery/ranks.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "server/model/job_record.h"
#include "server/store/state_store_sqlite.h"

namespace coordd::bench {
namespace {

constexpr int32_t kJobs = 32;                                     // of one coordd, at most
constexpr absl::Duration kBetweenJobs = absl::Milliseconds(1);    // at most
constexpr absl::Duration kBehindTheLast = absl::Milliseconds(3);  // at most
constexpr uint64_t kSeed = 1;

using Generations = std::map<std::string, int64_t>;  // by the job's name

// Jobs of one worker each, which only join. At most kJobs.
class JoiningJobs {
 public:
  JoiningJobs(const HostPort& coordd, std::string prefix)
      : prefix_(std::move(prefix)),
        crowd_(
            {.server = coordd, .method = "/coordd.v1.Coordinator/Session", .sessions = kJobs},
            [this](int32_t session, grpc::ByteBuffer& bytes) { OnMessage(session, bytes); },
            [](int32_t, const absl::Status&) {}) {}

  // The next one does.
  void Join() {
    crowd_.Open(joined_);
    const grpc::Slice join(JoinMessage(NameOf(joined_), JobShape{}, 0).SerializeAsString());
    crowd_.Send(joined_++, grpc::ByteBuffer(&join, 1));
  }

  // What their workers have heard so far.
  Generations Announced() {
    MutexLock lock(&mu_);
    return announced_;
  }

 private:
  std::string NameOf(int32_t session) const { return absl::StrCat(prefix_, session); }

  void OnMessage(int32_t session, grpc::ByteBuffer& bytes) {
    v1::CoordinatorMessage message;
    grpc::ProtoBufferReader reader(&bytes);
    if (!message.ParseFromZeroCopyStream(&reader) || !message.has_membership()) return;
    MutexLock lock(&mu_);
    announced_[NameOf(session)] = message.generation();
  }

  const std::string prefix_;
  int32_t joined_ = 0;  // touched by the owner only

  Mutex mu_;
  Generations announced_ ABSL_GUARDED_BY(mu_);

  Crowd crowd_;  // last: its end stops the calls into the others
};

// The state of a coordd that is dead.
class State {
 public:
  explicit State(const std::string& directory)
      : store_(directory, StateStoreOptions{.new_cluster_id = "bench"}) {}

  absl::Status Open() {
    COORDD_ASSIGN_OR_RETURN(const StoredState stored, store_.Open([](const absl::Status&) {}));
    COORDD_ASSIGN_OR_RETURN(restored_, ParseRecords(stored));
    return absl::OkStatus();
  }

  // Of what was announced: how much is not there.
  int64_t Missing(const Generations& announced) const {
    return std::count_if(announced.begin(), announced.end(), [this](const auto& entry) {
      const auto found = restored_.jobs.find(entry.first);
      return found == restored_.jobs.end() || !found->second.running() ||
             found->second.generation() < entry.second;
    });
  }

  absl::Status Remove(const std::string& job) {
    const StateWrite removal = JobRemoval(job);
    return store_.Commit({&removal, 1});
  }

  // The next coordd need not wait for anybody.
  absl::Status RemoveAll() {
    int64_t highest = ToInt(restored_.last_forgotten);
    std::vector<StateWrite> writes;
    for (const auto& [job, record] : restored_.jobs) {
      highest = std::max<int64_t>(highest, record.generation());
      writes.push_back(JobRemoval(job));
    }
    writes.push_back(ForgottenWrite(Generation{highest}));
    return store_.Commit(writes);
  }

 private:
  SqliteStateStore store_;
  RestoredState restored_;
};

struct Found {
  std::vector<double> ready_ms;
  int64_t announced = 0, in_the_midst = 0, missing = 0, planted = 0, planted_found = 0;
};

// Looks at the state after a kill, and empties it.
absl::Status Check(const std::string& directory, const Generations& announced, bool plant,
                   Found& found) {
  if (plant) {
    State state(directory);
    COORDD_RETURN_IF_ERROR(state.Open());
    COORDD_RETURN_IF_ERROR(state.Remove(announced.begin()->first));
  }
  State state(directory);
  COORDD_RETURN_IF_ERROR(state.Open());
  const int64_t missing = state.Missing(announced);
  found.announced += static_cast<int64_t>(announced.size());
  if (plant) {
    ++found.planted;
    if (missing == 1) ++found.planted_found;
  }
  found.missing += std::max<int64_t>(0, missing - (plant ? 1 : 0));
  return state.RemoveAll();
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureWrites(const RecoveryOptions& options) {
  const Directory directory;
  if (directory.path().empty()) return absl::UnavailableError("no directory for coordd's state");
  const std::string path = directory.path() + "/state";
  Random random(kSeed);
  Found found;
  for (int32_t number = 0; number < options.times; ++number) {
    const absl::Time start = absl::Now();
    COORDD_ASSIGN_OR_RETURN(auto coordd, StartLasting("127.0.0.1:0", path));
    found.ready_ms.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
    JoiningJobs jobs(coordd->address(), absl::StrCat("kill", number, "-"));
    const auto count = static_cast<size_t>(1 + random.Below(kJobs));
    for (size_t i = 0; i < count; ++i) {
      jobs.Join();
      Pause(kBetweenJobs * random.Uniform());
    }
    Pause(kBehindTheLast * random.Uniform());
    coordd.reset();
    const Generations announced = jobs.Announced();
    if (!announced.empty() && announced.size() < count) ++found.in_the_midst;
    const bool plant = found.planted < options.planted && !announced.empty();
    COORDD_RETURN_IF_ERROR(Check(path, announced, plant, found));
  }
  return nlohmann::json{{"victim", "coordd-writing"},
                        {"kills", options.times},
                        {"announced", found.announced},
                        {"kills_in_the_midst", found.in_the_midst},
                        {"missing", found.missing},
                        {"planted", found.planted},
                        {"planted_found", found.planted_found},
                        {"ready_p50_ms", Median(found.ready_ms)},
                        {"ready_worst_ms", Quantile(found.ready_ms, 1)}};
}

}  // namespace coordd::bench
