// When something happens, and what comes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "server/model/effects.h"
#include "server/model/graveyard.h"

namespace coordd {

// What each decision of the state machine needs besides its input: one value for all that is
// decided at one time. Made where an input comes in, and passed on as it is.
struct Turn {
  absl::Time now;
  Effects& effects;                // in the order in which they are to be carried out
  Graveyard* graveyard = nullptr;  // null: what is over is freed at once
  // How many more members may be given up for their silence, of all jobs; null: any number. The
  // others are in the next turn, so that nobody else waits for the end of a large job.
  int64_t* room_for_silent = nullptr;
  // Of what the next generations of all jobs are made of (NextGeneration), so much may be looked at
  // yet; null: as much of each.
  int64_t* entries = nullptr;

  // It is freed in parts, in this turn and later ones.
  void Bury(std::unique_ptr<Remains> remains) const {
    if (graveyard != nullptr) graveyard->Bury(std::move(remains));
  }
};

}  // namespace coordd
