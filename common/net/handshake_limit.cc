#include "common/net/handshake_limit.h"

#include <algorithm>

namespace coordd {
namespace {

constexpr char kFurtherAddresses[] = "";

}  // namespace

bool HandshakeLimit::Begin(const std::string& block, absl::Time now) {
  if (now < second_ || now >= second_ + absl::Seconds(1)) {
    second_ = now;
    begun_.clear();
  }
  Count& count = CountOf(block);
  const auto open = open_.find(block);
  const int left = count.begun - std::min(count.finished, kFinishedPerSecond - kPerSecond);
  if (left >= kPerSecond || (open != open_.end() && open->second >= kAtOnce)) return false;
  ++count.begun;
  ++open_[block];
  return true;
}

HandshakeLimit::Count& HandshakeLimit::CountOf(const std::string& block) {
  const bool counted = begun_.contains(block) || begun_.size() < kAddressesMax;
  return begun_[counted ? block : kFurtherAddresses];
}

void HandshakeLimit::Finished(const std::string& block) {
  // Of those of this second: one that was begun in the second before makes no room in this one.
  if (Count& count = CountOf(block); count.finished < count.begun) ++count.finished;
  Left(block);
}

void HandshakeLimit::Left(const std::string& block) {
  const auto open = open_.find(block);
  if (open != open_.end() && --open->second == 0) open_.erase(open);
}

}  // namespace coordd
