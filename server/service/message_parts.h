// What came as one message of a stream, in parts of which each fits into a turn.
#pragma once

#include <vector>

#include "server/generation/wake_rule.h"
#include "server/members/node_members.h"
#include "server/service/inbox.h"
#include "server/service/waiting_line.h"

namespace coordd {

// What the state hears together, and what it reports.
struct MessagePart {
  Inbox::Together in;
  WakeRule::Report report;
  MessageSize size = {};
};

// PURE. Copies refer to what is told, and do not copy it. A part costs at most Inbox::kTurnCost,
// but for what one member alone says. At least one part; in order. `bytes`: of all on the wire.
std::vector<MessagePart> PartsOf(SessionId stream, std::vector<Heard> in, size_t bytes);

}  // namespace coordd
