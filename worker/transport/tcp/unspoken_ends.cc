#include "worker/transport/tcp/unspoken_ends.h"

namespace coordd {

void UnspokenEnds::NoteRankAt(absl::string_view host) {
  if (HasRanks(host)) return;
  hosts_.emplace(host);
  std::erase_if(unknown_, [&](const auto& end) { return end.first.host == host; });
}

void UnspokenEnds::Add(const HostPort& from, absl::Time now) {
  if (!HasRanks(from.host)) unknown_.emplace_back(from, now);
}

std::vector<HostPort> UnspokenEnds::TakeStrangers(absl::Time now) {
  std::vector<HostPort> strangers;
  while (!unknown_.empty()) {
    const auto& [from, at] = unknown_.front();
    if (unknown_.size() <= kUnknownMax && now - at < kKnownWithin) break;
    strangers.push_back(from);
    unknown_.erase(unknown_.begin());
  }
  return strangers;
}

}  // namespace coordd
