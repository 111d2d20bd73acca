// Runs messages over a network in virtual time: events in the order of their time, and of those at
// the same time in the order in which they became known, so that the same question has the same
// answer everywhere. PURE.
#pragma once

#include <cstdint>

#include "bench/model/message_table.h"
#include "bench/model/network.h"

namespace coordd::model {

// A collective that is cut into pieces, of which a rank has some under way (SliceExchange), or one
// piece.
struct Pieces {
  int64_t number = 1;
  int64_t under_way = 1;
};

// Microseconds from when all ranks begin to when the last one has finished.
//
// As CollectiveRun does it: a step begins when the one before is done, what is sent in a step is
// sent at once, and the step is done when all of it has gone out and all that it waits for is there
// and combined, a segment while the next ones arrive. Messages go out of a port in the order in
// which they were begun; where they meet, in an uplink or at a receiver's port, first come, first
// served; a line begins to pass a message on when its first byte is there. Nobody waits for a
// receiver to be ready: messages are of segments, which TCP sends unasked (docs/design/tcp.md).
//
// Of many pieces the first ones are followed, until the others add as much time each as the ones
// before: what is left is that many times as much.
double MicrosecondsOf(const MessageTable& table, const Network& network, int32_t nodes,
                      Pieces pieces);

}  // namespace coordd::model
