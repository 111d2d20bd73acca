// coordd's key-value service as a Store. (io)
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/protocol/store.h"
#include "worker/coordinator/store_record.h"

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

// Thread-safe; calls block. While coordd cannot be reached they are repeated, until their deadline;
// Add and Append are not, once coordd may have carried them out: they fail with UNAVAILABLE then.
// Each attempt asks `channel` anew. What was written is taken down in `record` before the call
// returns; nullptr: nowhere.
std::unique_ptr<Store> NewGrpcStore(ChannelSource channel, StoreCredentials credentials,
                                    Clock& clock, std::shared_ptr<StoreRecord> record = nullptr);

}  // namespace coordd
