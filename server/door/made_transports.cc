#include "server/door/made_transports.h"

#include <utility>

#include "server/door/channelz_sockets.h"

namespace coordd {

std::vector<std::string> MadeTransports::TakeNew() {
  std::vector<std::string> peers;
  for (ChannelzSocket& socket : ChannelzSocketsFrom(next_)) peers.push_back(std::move(socket.peer));
  return peers;
}

}  // namespace coordd
