#include "common/net/request_queue.h"

namespace coordd {

void RequestQueue::Add(Asked asked) {
  const bool urgent = urgent_paths_.contains(asked.request.path);
  {
    MutexLock lock(&mu_);
    (urgent ? urgent_ : ordinary_).emplace(asked.id, std::move(asked.request));
  }
  if (urgent) urgent_some_.NotifyOne();
  some_.NotifyOne();
}

bool RequestQueue::Remove(uint64_t id) {
  MutexLock lock(&mu_);
  return ordinary_.erase(id) + urgent_.erase(id) > 0;
}

std::optional<RequestQueue::Asked> RequestQueue::Next(bool urgent_only) {
  MutexLock lock(&mu_);
  while (!stopped_ && urgent_.empty() && (urgent_only || ordinary_.empty()))
    (urgent_only ? urgent_some_ : some_).Wait(&mu_);
  if (stopped_) return std::nullopt;
  Waiting& from = urgent_.empty() ? ordinary_ : urgent_;
  auto first = from.extract(from.begin());
  return Asked{first.key(), std::move(first.mapped())};
}

void RequestQueue::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
  }
  some_.NotifyAll();
  urgent_some_.NotifyAll();
}

}  // namespace coordd
