// A job whose workers only talk: each has a session of its own and says what a real one would. (io)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/control/crowd.h"
#include "bench/control/messages.h"
#include "common/address.h"
#include "common/mutex.h"
#include "coordd/v1/session.pb.h"

namespace coordd::bench {

// Used by one thread. Every wait has a deadline; a session that ends, a sequence with a gap and an
// answer that nobody asked for are errors of whatever waits next.
class SimulatedJob {
 public:
  struct Options {
    HostPort coordd;
    std::string name = "simulated";
    JobShape shape;
    int32_t channels = 1;
  };
  struct Joined {
    absl::Duration after_last_join;  // from the last Join that was sent to the last Membership
    absl::Duration in_all;           // from the first Join
    double calls_per_rank = 0;       // gRPC calls
  };

  explicit SimulatedJob(const Options& options);

  // All workers join, as fast as they can. Once.
  absl::StatusOr<Joined> Join();

  // Makes what Round sends: `tensors` reports of each rank; by slots once coordd has given them.
  void Prepare(int32_t tensors);
  // Every rank reports; until the last has the plan of all tensors.
  absl::StatusOr<absl::Duration> Round();
  // The last rank is the last to report tensors that nobody has seen before, when coordd is known
  // to have heard all others; until the last rank has the plan.
  absl::StatusOr<absl::Duration> FirstSight(int32_t tensors);

  // Nothing but heartbeats: the first ones spread over the interval, the others when workers send
  // theirs. For so long, or until something goes wrong.
  absl::Status Beat(absl::Duration time);

  // To coordd and from it, since the start.
  int64_t messages_sent() const { return sent_; }
  int64_t messages_received() const { return received_; }
  // Whether the last round was reported by slots.
  bool cached() const { return cached_; }
  // Batches of the last round.
  int64_t batches() const { return batches_; }

 private:
  struct Member {
    int64_t sequence = 0;              // of the last message; touched by one reaction at a time
    std::atomic<int64_t> missing = 0;  // tensors that no plan has named
  };

  void OnMessage(int32_t rank, grpc::ByteBuffer& bytes);
  void OnMembership(const v1::CoordinatorMessage& message);
  void OnPlan(int32_t rank, const v1::CollectivePlan& plan);
  void UseSlots();
  // One heartbeat; nobody waits for the answer.
  void SendHeartbeat(int32_t rank);
  absl::Status Watch(absl::Duration time);
  void Send(int32_t rank, const v1::WorkerMessage& message);
  Epoch epoch() const { return Epoch{epoch_}; }
  Generation generation() const { return Generation{generation_}; }

  const Options options_;
  std::vector<Member> members_;
  Arrivals arrivals_;  // of memberships, plans, or answers to heartbeats: one at a time
  std::atomic<int64_t> epoch_ = 0, generation_ = 0;
  std::atomic<int64_t> sent_ = 0, received_ = 0, batches_ = 0;
  std::atomic<int64_t> interval_ns_ = 0;  // of heartbeats, as the Membership says
  std::atomic<bool> awaits_acks_ = false;

  // Guarded by mu_.
  Mutex mu_;
  std::vector<int64_t> given_ ABSL_GUARDED_BY(mu_);  // slots, by the last plan that gave any

  // Touched by the owner only.
  grpc::ByteBuffer ready_;  // what every rank sends in a round
  int32_t tensors_ = 0;
  int64_t series_ = 0;
  bool cached_ = false;
  std::set<std::pair<absl::Time, int32_t>> beats_;  // when who reports next
  int32_t beats_begun_ = 0;

  Crowd crowd_;  // last: its end stops the calls into the others
};

}  // namespace coordd::bench
