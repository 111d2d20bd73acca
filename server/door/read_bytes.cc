#include "server/door/read_bytes.h"

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace coordd {

std::string ReadBytes::PeerOf(absl::string_view grpc_peer) {
  absl::ConsumePrefix(&grpc_peer, "ipv4:");
  absl::ConsumePrefix(&grpc_peer, "ipv6:");
  return absl::StrReplaceAll(grpc_peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

ReadBytes::Counter ReadBytes::Of(absl::string_view grpc_peer) {
  const std::string peer = PeerOf(grpc_peer);
  MutexLock lock(&mu_);
  std::shared_ptr<std::atomic<uint64_t>>& bytes = bytes_[peer];
  if (bytes == nullptr) bytes = std::make_shared<std::atomic<uint64_t>>(0);
  return Counter(bytes);
}

uint64_t ReadBytes::Total(const std::string& peer) const {
  MutexLock lock(&mu_);
  const auto found = bytes_.find(peer);
  return found == bytes_.end() ? 0 : found->second->load(std::memory_order_relaxed);
}

void ReadBytes::Keep(const absl::flat_hash_set<std::string>& open) {
  MutexLock lock(&mu_);
  absl::erase_if(bytes_, [&open](const auto& one) { return !open.contains(one.first); });
}

}  // namespace coordd
