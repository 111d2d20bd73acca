// One terminal, pipe or log to which the workers of a run write, each in pieces that come when they
// come. PURE
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "client/coordrun/process/stream_splitter.h"

namespace coordd {

// What people expect of it: a line stands by itself behind its prefix, whoever else writes; of
// progress bars the last state of one of them is to be seen, below the lines; a prompt stays where
// it is until somebody else has something to say. In a file, too, every whole line begins at the
// start of one.
//
// Not thread-safe: one owner, who writes what it is given in one go.
class SharedScreen {
 public:
  // `terminal`: what is there can be erased.
  explicit SharedScreen(bool terminal) : terminal_(terminal) {}

  // What to write for the next piece of `source`. `prefix` stands before what begins a line.
  std::string Add(int32_t source, absl::string_view prefix, const OutputPiece& piece);
  // For lines of coordrun's own.
  std::string AddLine(absl::string_view line);
  // Nobody goes on with what stands there.
  std::string Finish();

 private:
  enum class Open {
    kNothing,
    kText,  // a line that has no end yet
    kBar,   // what its source will overwrite
  };

  // The line that is open is another's.
  std::string MakeRoom(bool for_bar);
  // Pieces without text.
  std::string EndOwn(PieceEnd end);
  std::string EndOther(int32_t source, absl::string_view prefix, PieceEnd end);

  const bool terminal_;
  Open open_ = Open::kNothing;
  int32_t source_ = 0;         // whose it is
  bool at_start_ = false;      // the cursor is before it
  std::string shown_;          // what stands there
  std::set<int32_t> bars_;     // sources that have gone back to the start of their line
  std::set<int32_t> cut_off_;  // whose open line somebody else has ended
  std::map<int32_t, std::string> covered_;  // whose bar somebody else has overwritten: what it was
};

}  // namespace coordd
