// Counts the bytes of whole messages that each connection has sent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"

namespace coordd {

// Thread-safe. Connections are called as gRPC calls them (ServerContext::peer).
class ReadBytes {
 public:
  // What a message costs besides its bytes: frames, pings, TLS records, its share of what begins a
  // call. More than they are, so that nobody who sends whole messages seems to have a backlog.
  static constexpr uint64_t kPerMessage = 512;

  // For one call, or one stream of many messages: adds without a lock.
  class Counter {
   public:
    Counter() = default;
    explicit Counter(std::shared_ptr<std::atomic<uint64_t>> bytes) : bytes_(std::move(bytes)) {}
    void Add(uint64_t message_bytes) {
      if (bytes_ != nullptr)
        bytes_->fetch_add(message_bytes + kPerMessage, std::memory_order_relaxed);
    }

   private:
    std::shared_ptr<std::atomic<uint64_t>> bytes_;
  };

  Counter Of(absl::string_view grpc_peer);
  // 0: nothing is known of it.
  uint64_t Total(const std::string& peer) const;
  // Forgets all other connections.
  void Keep(const absl::flat_hash_set<std::string>& open);

  // "10.0.0.1:4711" of "ipv4:10.0.0.1:4711", "[::1]:80" of "ipv6:%5B::1%5D:80".
  static std::string PeerOf(absl::string_view grpc_peer);

 private:
  // Guarded by mu_.
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<std::atomic<uint64_t>>> bytes_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
