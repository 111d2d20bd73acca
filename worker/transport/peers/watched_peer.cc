#include "worker/transport/peers/watched_peer.h"

#include "absl/strings/str_cat.h"

namespace coordd {

std::optional<std::string> WatchedPeer::Look(const News& news, absl::Time now) {
  if (!port_.has_value()) return std::nullopt;
  if (news.moved || !news.waits) watch_.Moved(now);
  if (probe_.has_value()) {
    const PeerProbe::Answer answer = probe_->Poll();
    if (answer == PeerProbe::Answer::kReached) {
      watch_.Answered(now);
    } else if (watch_.PatienceIsOver(now)) {
      watch_.NotAnswered();
    } else {
      return std::nullopt;
    }
    probe_.reset();
  }
  if (watch_.silent(news.connects)) {
    return absl::StrCat("nothing comes from it, and its host does not answer at ",
                        port_->ToString());
  }
  if (watch_.WantsProbe(now)) {
    probe_.emplace(*port_);
    watch_.Asked(now);
  }
  return std::nullopt;
}

}  // namespace coordd
