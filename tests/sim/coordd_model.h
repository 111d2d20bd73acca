// coordd as the simulators have it: its state, on a disk that takes its time; it dies, is started
// again on what it had stored, and sleeps; and the streams of its workers, which break: what has
// been sent arrives up to a point that differs from worker to worker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/random.h"
#include "server/job/coordinator_state.h"
#include "server/model/job_record.h"
#include "tests/server/support/invariants.h"

namespace coordd {

// No run takes longer: below the stall's end and every deadline.
inline constexpr absl::Duration kMaxSimTime = absl::Minutes(4);

// What the simulators find.
template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}

inline ServerOptions SimServerOptions() {
  ServerOptions options;
  options.stall_warning = absl::Minutes(5);
  options.stall_abort = absl::Minutes(10);
  return options;
}

// A worker's stream to coordd, with what is under way on it.
struct SimStream {
  SessionId session;                                       // 0: it has none, or it has ended
  int64_t number = 0;                                      // as its worker counts them
  bool ends = false;                                       // it has, behind from_coordd
  std::optional<absl::Status> closed;                      // by coordd, with this status
  int64_t sequence = 0;                                    // of messages from coordd
  std::deque<std::optional<v1::WorkerMessage>> to_coordd;  // nullopt: its process has ended
  std::deque<v1::CoordinatorMessage> from_coordd;
  std::deque<v1::CoordinatorMessage> lost;  // that an earlier coordd had said, and did not arrive
  // The network: what is sent there is under way until it is whole again, and no stream is opened.
  bool cut_to = false, cut_from = false;
  bool refused = false;              // it could not be opened, which its worker knows by itself
  std::vector<SessionId> abandoned;  // by the worker, of which coordd has not heard
  // Of streams that its worker has given up: what was under way, and what had arrived before, once
  // more. With the stream's number.
  std::deque<v1::CoordinatorMessage> arrived;  // on this one
  std::deque<std::pair<int64_t, v1::CoordinatorMessage>> stale_from_coordd;
  std::deque<std::pair<SessionId, v1::WorkerMessage>> stale_to_coordd;
};

// Checks the history of what coordd says (tests/server/support/invariants.h) and its consistency
// after each step. All statuses are INTERNAL and say what went wrong.
class CoorddModel {
 public:
  struct Hooks {
    // coordd says something to a worker, on the stream that it has or (not `current`) on one that
    // has ended. Whether it is sent; it may be changed.
    std::function<bool(int32_t worker, v1::CoordinatorMessage& message, bool current)> said;
    // Closed sessions and answers to calls.
    std::function<absl::Status(const Outgoing& out)> did;
    std::function<void()> job_ended = nullptr;
    // What a coordd that is started again finds: for planted mistakes.
    std::function<void(RestoredState& found)> found = nullptr;
    // What happens, a line each.
    std::function<void(absl::string_view line)> log = nullptr;
    // A planted mistake: the disk says that it has written, and writes then.
    bool answers_early = false;
  };
  CoorddModel(const ServerOptions& options, size_t workers, Random& random, Hooks hooks);

  absl::Time now() const { return now_; }
  void PassUntil(absl::Time time) { now_ = std::max(now_, time); }

  absl::Status Start();
  bool alive() const { return state_ != nullptr; }
  // What was being stored is, up to some write.
  void Crash();
  // For long enough that it forgives. Some workers have lost patience by the time at which it wakes
  // up: their streams have ended, of which it hears later. `is_there`: the worker lives.
  void Sleep(const std::function<bool(int32_t worker)>& is_there);
  // A relay has ended, and the streams of these, at once; coordd hears of it later.
  void LoseStreams(const std::function<bool(int32_t worker)>& through_it);
  bool has_broken_streams() const { return !broken_.empty() || !lost_.empty(); }
  absl::Status HearOfBrokenStream();

  // REQUIRES of these: alive.
  absl::Status Step(const Inbound& in);
  absl::Status Tick();
  absl::Status Read(int32_t worker);  // the next thing on its stream
  const CoordinatorState& state() const { return *state_; }
  v1::JobState Job() const;  // as operators see the only one

  // The disk has something to do: to write, or to say that it has written.
  bool is_storing() const { return !storing_.empty(); }
  bool has_stored_unsaid() const {
    return !storing_.empty() && (storing_.front().written || storing_.front().answered);
  }
  absl::Status StoreOn();
  // In which each generation was stored.
  int64_t epoch_of(int64_t generation) const;
  int64_t epoch() const { return epoch_; }

  SimStream& stream(int32_t worker) { return streams_[static_cast<size_t>(worker)]; }
  int32_t worker_of(SessionId session) const { return worker_of_.at(session); }
  void Open(int32_t worker, int64_t number);
  void Send(int32_t worker, v1::WorkerMessage message);  // nothing, without a stream
  void SendJoin(int32_t worker, v1::Join join);          // on a stream of its own
  void Break(int32_t worker);                            // what does not arrive is gone
  // coordd has ended it, and its worker hears of that once it may.
  void Close(int32_t worker, const absl::Status& status);
  void Cut(int32_t worker, bool to_coordd, bool from_coordd);
  void Mend(int32_t worker);
  bool is_cut(int32_t worker) const {
    const SimStream& link = streams_[static_cast<size_t>(worker)];
    return link.cut_to || link.cut_from;
  }
  // What was under way on a stream arrives after another one has been opened, as long as coordd has
  // not heard of its end.
  void KeepStale() { keeps_stale_ = true; }
  bool HasStale(int32_t worker) const;
  absl::Status ReadStale(int32_t worker);
  // It has arrived at the worker.
  v1::CoordinatorMessage TakeFor(int32_t worker);
  // Something arrives there.
  bool HasNews(int32_t worker) const;  // for coordd
  bool HasNewsFor(int32_t worker) const;

 private:
  struct Storing {
    Persist what;
    bool written = false;
    bool answered = false;
  };
  absl::Status Took(const Effects& effects);
  void Deliver(SessionId session, const v1::CoordinatorMessage& message);
  void LeaveBehind(SimStream& stream);
  void ForgetStale(SessionId session);
  void Write(const Persist& what);
  template <typename... Args>
  void Log(const Args&... args) const;

  const ServerOptions options_;
  Random& random_;
  const Hooks hooks_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  std::unique_ptr<CoordinatorState> state_;  // none: it has died
  HistoryChecker history_{/*durable=*/true};
  std::map<std::string, std::string> disk_;
  std::deque<Storing> storing_;
  std::map<int64_t, int64_t> epoch_of_;
  int64_t epoch_ = 4;
  int64_t last_session_ = 0;
  bool keeps_stale_ = false;
  std::vector<SimStream> streams_;
  std::map<SessionId, int32_t> worker_of_;   // also of streams that have ended
  std::deque<std::vector<SessionId>> lost_;  // likewise, those of a relay
  std::vector<SessionId> broken_;            // streams of whose end coordd has not heard
};

}  // namespace coordd
