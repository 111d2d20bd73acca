// coordd's key-value service as a Store. (io)
#pragma once

#include <memory>
#include <string>

#include "common/clock.h"
#include "common/store.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace coordd {

struct StoreCredentials {
  std::string job;
  std::string token;
};

// Thread-safe; calls block. Set, Get and DeletePrefix are repeated while coordd cannot be reached,
// until their deadline; Add is not, once coordd may have carried it out.
std::unique_ptr<Store> NewGrpcStore(std::shared_ptr<grpc::Channel> channel,
                                    StoreCredentials credentials, Clock& clock);

}  // namespace coordd
