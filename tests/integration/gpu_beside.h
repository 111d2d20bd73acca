// coordd's calls beside NCCL groups of the program's own, on one device.
#pragma once

#include <string>
#include <vector>

#include "tests/integration/gpu_rank.h"

namespace coordd {

// The program of a rank: words, each of which is one call. Four ranks; beside coordd there are the
// groups that FSDP and tensor parallelism have with torch's "nccl" backend: "f" of every second
// rank, "t" of two neighbours. Each has a communicator, a stream and events as torch gives them.
//
//   c, e, f, t    calls a collective, on its buffer: an allreduce of coordd's (c, e) or of t, a
//                 reduce-scatter and an allgather of f
//   C, E, F, T    its Work.wait(): the program's stream waits, and of coordd's the thread, too,
//                 until the call is on the device
//   on:C, on:E    this thread alone waits until the call is on the device
//   busy          this thread waits until a collective is at work on the device; over the stand-ins
//   free, freed   another thread gives memory back to the driver, and has the driver's lock when
//   this
//                 one goes on; it is through (over the stand-ins)
//   say:X, hear:X once all ranks that say X have, those that hear it go on
//   end:C         the thread waits for the result, as a program does that needs it, and says what
//                 it gets; if it failed, enters the next generation
//   done          the thread waits for its stream
//   own           ends the groups, as torch's watchdog does, whatever is under way
//   leave         as a program that an error has ended: it leaves what is under way, and coordd
//
// With `one_buffer` all calls have the same one, so that each has to be behind the one before.
// Then results are checked; "ok beside N".
void BesideNccl(RankOnDevice& r, int times, bool one_buffer, const std::vector<std::string>& words);

}  // namespace coordd
