#include "common/net/handshake_limit.h"

namespace coordd {
namespace {

constexpr char kFurtherAddresses[] = "";

}  // namespace

bool HandshakeLimit::Begin(const std::string& block, absl::Time now) {
  if (now < second_ || now >= second_ + absl::Seconds(1)) {
    second_ = now;
    begun_.clear();
  }
  const bool counted = begun_.contains(block) || begun_.size() < kAddressesMax;
  int& begun = begun_[counted ? block : kFurtherAddresses];
  const auto open = open_.find(block);
  if (begun >= kPerSecond || (open != open_.end() && open->second >= kAtOnce)) return false;
  ++begun;
  ++open_[block];
  return true;
}

void HandshakeLimit::End(const std::string& block) {
  const auto open = open_.find(block);
  if (open != open_.end() && --open->second == 0) open_.erase(open);
}

}  // namespace coordd
