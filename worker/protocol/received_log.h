// What coordd has told this rank about its generation, and perhaps not all others: kept so that a
// coordd that is started again can tell them. docs/design/recovery.md, part B.
#pragma once

#include <cstdint>
#include <map>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// PURE; part of WorkerState. Messages with a position, in its order, until it is known that
// everybody to whom one went has received it: each rank receives what it is sent in one order, so
// who has executed something has received all that was sent to it before.
class ReceivedLog {
 public:
  // A rank that executes what needs nobody else (a broadcast from it, and nothing but such) cannot
  // know what others have received. It keeps so much, then forgets the oldest.
  static constexpr size_t kMaxMessages = 4096;
  static constexpr int64_t kMaxBytes = int64_t{8} << 20;

  // `to`: the process set whose members it was sent to. REQUIRES: its position is larger than
  // position(). What of its body has already been moved out is not kept.
  void Add(ProcessSetId to, v1::CoordinatorMessage message);
  // The position of the last message.
  int64_t position() const { return position_; }

  // All members of the set have received what went to them up to `position`.
  void Settle(ProcessSetId set, int64_t position);
  // Not everybody has received what is there at `position`, whatever is settled: the end of a set.
  void Keep(int64_t position);
  // Everybody is told of the end of the set, which was kept.
  void DropKept(ProcessSetId ended);
  // The set, as it was announced, has ended for this rank. Who has not heard all that went to it
  // is told; so it is kept for as long as anything of that is.
  void NoteEnded(v1::ProcessSetChange set);
  const std::map<ProcessSetId, v1::ProcessSetChange>& ended() const { return ended_; }
  void Clear();

  size_t messages() const { return entries_.size(); }
  // Calls `each` with (process set, message), in order.
  template <typename F>
  void ForEach(F each) const {
    for (const auto& [position, entry] : entries_) each(entry.to, entry.message);
  }
  // Up to which position messages to a set were forgotten although others may lack them.
  const std::map<ProcessSetId, int64_t>& forgotten() const { return forgotten_; }

 private:
  struct Entry {
    ProcessSetId to;
    v1::CoordinatorMessage message;
    int64_t bytes = 0;
    bool kept = false;
  };
  using Entries = std::map<int64_t, Entry>;
  Entries::iterator Erase(Entries::iterator entry);
  void DropEnded();  // of which nothing is kept

  int64_t position_ = 0;
  Entries entries_;  // by position
  int64_t bytes_ = 0;
  std::map<ProcessSetId, int64_t> forgotten_;
  std::map<ProcessSetId, v1::ProcessSetChange> ended_;
};

}  // namespace coordd
