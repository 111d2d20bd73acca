// Operators who have said that workers are to go, and wait for their answer.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/model/effects.h"

namespace coordd {

// PURE. Not thread-safe. Nobody is answered before what was asked for is stored, since whoever is
// answered may rely on it; and it knows whether there is anything stored that would have to go.
class Dismissals {
 public:
  struct Pending {
    DismissAnswer answer;
    bool closes_node = false;  // which was open before
  };
  void Await(Pending pending) { pending_.push_back(std::move(pending)); }
  // What waits for this call; nullopt: nothing does any more.
  std::optional<Pending> Take(CallId call);
  // Nothing waits any more: all get `why`.
  void Fail(const absl::Status& why, Effects& effects);

  // A record is to be stored, which is empty or not. False: that is what is stored.
  bool Store(bool is_empty);
  // By the coordd before this one.
  void Restore(bool is_stored) { is_stored_ = is_stored; }
  // The job has ended; whether a record has to go.
  bool TakeStored() { return std::exchange(is_stored_, false); }

 private:
  std::vector<Pending> pending_;
  bool is_stored_ = false;
};

}  // namespace coordd
