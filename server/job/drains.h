// Who of a job has been asked to leave, by whom, and how long each may stay; and the nodes to which
// nobody may come in their place.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// When nobody says how long: enough for most programs to come to their next commit.
inline constexpr absl::Duration kDefaultDrainGrace = absl::Seconds(60);
inline constexpr size_t kMaxClosedNodes = 1024;  // who closes more should end the job

struct Drain {
  std::string asked_by;  // "operator/alice (which says: alice@login1)"
  absl::Duration grace = kDefaultDrainGrace;
  // Infinite: the worker has not been told yet.
  absl::Time until = absl::InfiniteFuture();

  bool has_begun() const { return until != absl::InfiniteFuture(); }
};

// By worker id, so that it holds over sessions and generations. PURE; `now` must not decrease. Not
// thread-safe: one owner.
class Drains {
 public:
  // Another word about the same worker takes the place of the first; it has to begin again.
  void Ask(const std::string& worker_id, std::string asked_by, absl::Duration grace);
  // The notice is told now, and its grace begins. REQUIRES: the worker was asked.
  const Drain& Begin(const std::string& worker_id, absl::Time now);
  // The worker may stay; returns whether it had been asked.
  bool Drop(const std::string& worker_id) { return drains_.erase(worker_id) > 0; }
  // The worker is gone; returns whether it had been asked. A coordd that is started again before a
  // generation is stored without it does not know that, and the worker perhaps neither: so it stays
  // in the record.
  bool NoteGone(const std::string& worker_id);
  // A generation has been stored that has none of those who are gone; whether there are any.
  bool ForgetGone() {
    awaited_until_ = absl::InfinitePast();
    return !std::exchange(gone_, {}).empty();
  }
  const Drain* Find(const std::string& worker_id) const;  // null: not asked

  // The members have agreed on a change: until then no generation forms with one of those who have
  // been told. InfinitePast: nobody is awaited.
  void AwaitUntil(absl::Time until) { awaited_until_ = until; }
  absl::Time awaited_until() const { return awaited_until_; }

  std::vector<std::string> Overdue(absl::Time now) const;
  absl::Time NextDeadline() const;
  // coordd was not running for `gap`: nobody could say goodbye.
  void Forgive(absl::Duration gap);

  // A node, by host name or node id, takes no new workers. RESOURCE_EXHAUSTED: too many do not.
  absl::Status CloseNode(const std::string& node, std::string asked_by);
  // Whether it was closed.
  bool OpenNode(const std::string& node) { return nodes_.erase(node) > 0; }
  bool IsClosed(const std::string& node) const { return nodes_.contains(node); }
  std::vector<std::string> closed_nodes() const;
  // FAILED_PRECONDITION: a new worker on this host comes to a closed node; who has said so, and
  // what helps.
  absl::Status CheckHost(const v1::HostIdentity& host) const;

  size_t size() const { return drains_.size(); }
  bool empty() const { return drains_.empty() && nodes_.empty() && gone_.empty(); }
  std::vector<std::string> worker_ids() const;
  // All are to be told anew: the members come back one after the other, perhaps also one who was
  // taken for gone.
  void Suspend();
  // What is stored of it. Restored, nothing has begun.
  v1::DrainRecord Record() const;
  void Restore(const v1::DrainRecord& record);

 private:
  std::map<std::string, Drain> drains_;
  std::map<std::string, Drain> gone_;
  std::map<std::string, std::string> nodes_;  // closed ones, and who has asked
  absl::Time awaited_until_ = absl::InfinitePast();
};

}  // namespace coordd
