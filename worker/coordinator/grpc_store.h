// coordd's key-value service as a Store. (io)
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/protocol/store.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace coordd {

struct StoreCredentials {
  std::string job;
  std::string token;
};

// Where coordd is, as far as is known now. Thread-safe; must not block.
using ChannelSource = std::function<std::shared_ptr<grpc::Channel>()>;

// Thread-safe; calls block. Set, Get and DeletePrefix are repeated while coordd cannot be reached,
// until their deadline; Add is not, once coordd may have carried it out. Each attempt asks
// `channel` anew.
std::unique_ptr<Store> NewGrpcStore(ChannelSource channel, StoreCredentials credentials,
                                    Clock& clock);

}  // namespace coordd
