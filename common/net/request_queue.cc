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

std::optional<size_t> RequestQueue::SetOf(const std::string& path) const {
  for (size_t i = 0; i < sets_.size(); ++i)
    if (sets_[i].contains(path)) return i;
  return std::nullopt;
}

RequestQueue::Waiting::iterator RequestQueue::FirstThatMay() {
  auto first = ordinary_.begin();
  for (; first != ordinary_.end(); ++first) {
    const std::optional<size_t> set = SetOf(first->second.path);
    if (!set.has_value() || !busy_[*set]) break;
  }
  return first;
}

std::optional<RequestQueue::Asked> RequestQueue::Next(bool urgent_only) {
  MutexLock lock(&mu_);
  Waiting::iterator ordinary = ordinary_.end();
  while (!stopped_ && urgent_.empty()) {
    if (!urgent_only && (ordinary = FirstThatMay()) != ordinary_.end()) break;
    (urgent_only ? urgent_some_ : some_).Wait(&mu_);
  }
  if (stopped_) return std::nullopt;
  auto first = urgent_.empty() ? ordinary_.extract(ordinary) : urgent_.extract(urgent_.begin());
  if (const auto set = SetOf(first.mapped().path)) busy_[*set] = true;
  return Asked{first.key(), std::move(first.mapped())};
}

void RequestQueue::Done(const std::string& path) {
  const std::optional<size_t> set = SetOf(path);
  if (!set.has_value()) return;
  {
    MutexLock lock(&mu_);
    busy_[*set] = false;
  }
  some_.NotifyOne();
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
