// A job whose workers only talk: each has a session of its own, or those of a node have one, and
// says what a real one would. (io)
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
#include "absl/types/span.h"
#include "bench/control/crowd.h"
#include "bench/control/messages.h"
#include "common/base/mutex.h"
#include "common/net/address.h"
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
    std::string tls = {};  // as Crowd::Options
  };
  struct Joined {
    absl::Duration after_last_join;  // from the last Join that was sent to the last Membership
    absl::Duration in_all;           // from the first Join
    double calls_per_rank = 0;       // gRPC calls
  };

  explicit SimulatedJob(const Options& options);

  // All workers join, as fast as they can. Once.
  absl::StatusOr<Joined> Join();

  // Every rank asks for so many groups, one after the other, each with the other members alone: in
  // turns of neighbours, of the ranks with its place on all nodes, of neighbours of two nodes, and
  // of a tenth of all. Until the last rank has its last one.
  absl::StatusOr<absl::Duration> MakeGroups(int32_t groups);

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

  // To coordd and from it, since the start, as gRPC counts them.
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

  // Ranks that have been sent one message: one, or neighbours on a node.
  struct Receivers {
    int32_t first = 0;
    int32_t count = 1;
  };

  void OnMessage(int32_t rank, grpc::ByteBuffer& bytes);
  void OnReplies(int32_t node, grpc::ByteBuffer& bytes);
  void Handle(Receivers to, const v1::CoordinatorMessage& message);
  void OnPlan(Receivers to, const v1::CollectivePlan& plan);
  // What all ranks ask for in one turn of MakeGroups.
  std::vector<std::pair<int32_t, v1::WorkerMessage>> GroupRequests(int32_t turn) const;
  void SetReady(const v1::WorkerMessage& message);
  void UseSlots();
  absl::Status Watch(absl::Duration time);
  // Of several ranks of a node in one, where it has a node session; in order of the nodes.
  using Said = std::pair<int32_t, v1::WorkerMessage>;  // by this rank
  void Send(absl::Span<const Said> messages);
  void Send(int32_t rank, const v1::WorkerMessage& message) { Send({{rank, message}}); }
  grpc::ByteBuffer Framed(absl::Span<const Said> together) const;
  int32_t SessionOf(int32_t rank) const {
    return options_.shape.node_sessions ? rank / options_.shape.ranks_per_node : rank;
  }
  v1::WorkerMessage Heartbeat() const;
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
  grpc::ByteBuffer ready_;  // what every session sends in a round
  int32_t tensors_ = 0;
  int64_t series_ = 0;
  bool cached_ = false;
  std::set<std::pair<absl::Time, int32_t>> beats_;  // when who reports next
  int32_t beats_begun_ = 0;

  Crowd crowd_;  // last: its end stops the calls into the others
};

}  // namespace coordd::bench
