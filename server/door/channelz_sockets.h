// What gRPC tells of the connections of its servers, by channelz only. (io)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace coordd {

struct ChannelzSocket {
  int64_t id = 0;
  std::string peer;  // as PeerOfSocketName has it
};

// "10.0.0.1:4242" or "[::1]:4242" of channelz's name of a socket, "chttp2 ipv4:10.0.0.1:4242"
// or "chttp2 ipv6:%5B::1%5D:4242"; "unix-abstract:x" of "chttp2 unix-abstract:x"; empty: it has
// none.
std::string PeerOfSocketName(absl::string_view name);

// The connections of all servers of this process whose handshake is over and whose number is
// `next_by_server` of their server or greater; moves these on. Costs in proportion to what it
// returns.
std::vector<ChannelzSocket> ChannelzSocketsFrom(std::map<int64_t, int64_t>& next_by_server);

// The calls of one connection that have begun and have not ended, from channelz's description of
// its socket; 0: it tells none.
uint64_t CallsOfSocketJson(absl::string_view text);
// The same of all connections, by peer. Costs in proportion to all connections: some 20 us each.
absl::flat_hash_map<std::string, uint64_t> CallsUnderWay();

}  // namespace coordd
