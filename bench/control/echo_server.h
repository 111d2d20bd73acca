// The yardstick: a server that does nothing but hold streams, count and answer. (io)
#pragma once

namespace coordd::bench {

// Any method is its stream of messages. When `sessions` messages have come it sends 64 bytes to all
// streams, as coordd does with a plan; the bytes are shared. Writes {"listen": ...} to `ready_fd`
// and runs until it is killed or its parent has ended. Returns an exit status.
int RunEchoServer(int sessions, int ready_fd);

}  // namespace coordd::bench
