// Sends and receives of comms: between two ranks, without coordd.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"
#include "worker/api/comm.h"
#include "worker/execute/driver_seat.h"
#include "worker/execute/executor.h"
#include "worker/execute/work.h"
#include "worker/runtime/comm_calls.h"

namespace coordd {

// One object per generation, of all comms. Thread-safe. Each two ranks are a group of the data
// plane with four lanes, which the first message between them makes:
//
//   headers      one lane each way: what is sent (with its bytes, when they are few), and what the
//                receiver answers. A rank listens to another one while it has something open with
//                it
//   bytes        one lane each way, in the order of the receiver's answers
//
// So nothing large moves before both sides have its memory, and no message waits for one that
// nobody receives yet. Messages of one comm from one rank with one tag match receives in order.
//
// A send of few bytes ends when they are on their way, before anybody receives them, but only
// kMaxEarly of them from one rank to another: further ones wait until so many have been received.
// So a rank that sends and waits, message by message, cannot fill the memory of one that is behind,
// and two ranks may send to each other first, that many messages each.
class PointToPoint {
 public:
  static constexpr int32_t kAnySource = -1;
  static constexpr int64_t kFewBytes = 208;  // travel with their header
  static constexpr int64_t kMaxEarly = 128;  // 36 KiB of headers

  // A message as its sender or its receiver gives it. `buffer` is in use until the work is done.
  struct Message {
    LaneId comm;
    std::shared_ptr<const std::string> name = {};  // of the comm
    int64_t tag = 0;
    int32_t peer = 0;  // in the generation; of a receive also kAnySource
    std::shared_ptr<const std::vector<int32_t>> members = {};  // of the comm, this rank among them
    std::vector<int32_t> sources = {};  // of a receive: who may send; filled in by Receive
    std::byte* buffer = nullptr;
    int64_t count = 0;
    DataType dtype = DataType::kUint8;

    int64_t bytes() const { return count * SizeOf(dtype); }
  };
  struct Needs {
    Generation generation;
    int32_t self = 0;
    int32_t size = 0;
    Executor* executor = nullptr;  // outlives the calls
    Clock* clock = nullptr;
    // A message of `bytes` has ended. Called on any thread.
    std::function<void(CollectiveKind kind, absl::StatusCode code, int64_t bytes)> count;
    // The data plane has failed.
    std::function<void(const absl::Status&)> report_failure;
  };

  explicit PointToPoint(Needs needs);
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // The work of a receive has in `received_splits` the sender, counted among the members. It ends
  // with
  //   INVALID_ARGUMENT    sender and receiver do not mean the same count and dtype: both hear it,
  //                       but for a sender of few bytes that does not wait for its receiver
  //   the generation's end
  // It has no deadline of its own. Statuses: UNIMPLEMENTED, a rank beyond kMaxRanks; the end of the
  // generation.
  absl::StatusOr<std::shared_ptr<Work>> Send(Message message);
  absl::StatusOr<std::shared_ptr<Work>> Receive(Message message);

  // A receive that its program waits for no longer ends with CANCELLED, so that it does not take
  // what comes later. Nothing else is withdrawn: a receive that something has come for ends as it
  // would have, and a send has been sent.
  void Withdraw(const Work& receive);

  // Adds those that wait for the other rank; of each comm and peer the oldest one.
  void AddWaiting(std::vector<WaitingCall>& waiting);
  // The generation has ended: so does all that does not use its memory; what does ends when the
  // data plane has let go of it. Idempotent.
  void End(const absl::Status& why);

 private:
  // kBrought: a message of few bytes, which wants no answer. kHere: any other one. kGo: send the
  // bytes, or: these few have been received. kTaken: nothing but that.
  enum class Saying : int32_t { kBrought = 1, kHere, kGo, kRefused, kTaken };
  // What travels on the lanes of headers. Both ends are of one byte order, as for all tensors.
  struct Header {
    Saying saying = Saying::kHere;
    int32_t dtype = 0;
    int64_t comm = 0;
    int64_t tag = 0;
    int64_t id = 0;  // of the message, by its sender
    int64_t count = 0;
    int64_t taken = 0;  // how many of those that were brought have been received
    std::array<std::byte, kFewBytes> few;

    bool is_few() const { return count * SizeOf(static_cast<DataType>(dtype)) <= kFewBytes; }
  };
  struct Open {
    std::shared_ptr<Work> work;
    Message message;
    absl::Time since = {};  // when it was called
  };
  struct Peer {
    bool defined = false;
    bool listening = false;
    int64_t open = 0;  // what it is listened to for
    int64_t next_id = 1;
    int64_t unread = 0;       // sends of few bytes that have ended, and nobody has received
    int64_t known_taken = 0;  // Header::taken, as it has said
    int64_t taken = 0;        // of those that it has brought
    int64_t told_taken = 0;   // of these, as it has been told
    int32_t announcing = 0;   // headers that are under way
    std::deque<std::pair<Header, Open>> outbox;  // Open: of what is brought, which ends with it
    std::map<int64_t, Open> announced;           // wait for an answer
    std::map<int64_t, Open> early;               // of few bytes: for room, or for an answer
    std::array<int64_t, 4> sequences = {};       // by lane
  };
  struct Arrived {
    int32_t from = 0;
    Header header;
  };
  struct Ended {
    Open open;
    absl::Status status;
    int32_t source = 0;
  };
  // What is to be done without the lock.
  struct Effects {
    std::vector<Ended> ended;
    absl::Status failure;
  };

  absl::Status CheckPeer(int32_t peer) const;
  std::shared_ptr<Work> NewWork(const Message& message, CollectiveKind kind) const;
  LaneId LaneTo(int32_t peer, bool outgoing, bool headers, int* index) const;
  // Executes one transfer with the peer; `done` gets its status, without the lock.
  bool Launch(int32_t peer, bool outgoing, bool headers, std::byte* bytes, int64_t size,
              std::function<void(const absl::Status&)> done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Say(int32_t peer, Header header, Open open, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Pump(int32_t peer, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Listen(int32_t peer, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnHeader(int32_t from, const Header& header, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnHere(int32_t from, const Header& header, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndEarly(Peer& peer, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAnswer(int32_t from, const Header& header, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The one that waits for the answer, if it still does.
  static std::optional<Open> TakeAnnounced(Peer& peer, int64_t id);
  // The two belong together.
  void Accept(int32_t from, const Header& header, Open open, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Transfer(int32_t peer, bool outgoing, Open open, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const absl::Status& status, Open open, Effects& effects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(Effects effects);
  void Complete(Ended ended);
  static bool Matches(const Message& receive, int32_t from, const Header& header);

  // Constant after construction.
  const Needs needs_;

  // Thread-safe by itself: callbacks of works, which may wait for others, have a thread.
  BoundedQueue<std::function<void()>> callbacks_;

  // Guarded by mu_.
  Mutex mu_;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  bool reported_ ABSL_GUARDED_BY(mu_) = false;
  std::map<int32_t, Peer> peers_ ABSL_GUARDED_BY(mu_);
  std::list<Open> receives_ ABSL_GUARDED_BY(mu_);    // in order; nothing has come for them
  std::list<Arrived> arrived_ ABSL_GUARDED_BY(mu_);  // in order; nobody receives them yet
  std::vector<Open> failed_ ABSL_GUARDED_BY(mu_);    // of which coordd says why
  std::thread thread_ ABSL_GUARDED_BY(mu_);          // of the callbacks, from the first one on
};

}  // namespace coordd
