#include "server/service/unread_answers.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/door/caller.h"

namespace coordd {

UnreadAnswers::UnreadAnswers(const UnreadBounds& bounds)
    : bounds_(bounds), all_(std::make_shared<Sum>()) {}

std::shared_ptr<UnreadAnswers::OfOne> UnreadAnswers::Of(const Caller& caller) {
  MutexLock lock(&mu_);
  if (of_.size() >= sweep_at_) {
    absl::erase_if(of_, [](const auto& one) {
      return one.second.use_count() == 1 &&
             one.second->own_->bytes.load(std::memory_order_relaxed) == 0;
    });
    sweep_at_ = 4096 + 2 * of_.size();
  }
  const std::string account = AccountOf(caller);
  std::shared_ptr<OfOne>& one = of_[account];
  if (one == nullptr) one.reset(new OfOne(account, bounds_, all_));
  return one;
}

grpc::Slice UnreadAnswers::OfOne::NewSlice(size_t bytes) const {
  // What gRPC hands back at the end lies in front of the bytes.
  struct Counted {
    std::shared_ptr<Sum> own, all;
    int64_t bytes;
  };
  const auto counts = static_cast<int64_t>(bytes);
  auto* const memory = static_cast<uint8_t*>(::operator new(sizeof(Counted) + bytes));
  auto* const counted = new (memory) Counted{own_, all_, counts};
  Count(counts);
  const auto release = [](void* data) {
    auto* const gone = static_cast<Counted*>(data);
    gone->own->bytes.fetch_sub(gone->bytes, std::memory_order_relaxed);
    gone->all->bytes.fetch_sub(gone->bytes, std::memory_order_relaxed);
    gone->~Counted();
    ::operator delete(data);
  };
  return {memory + sizeof(Counted), bytes, release, counted};
}

bool UnreadAnswers::OfOne::IsOver(int64_t session_bytes, int64_t times) const {
  const auto part = [](const Sum& sum, int64_t bound) {
    return static_cast<double>(sum.bytes.load(std::memory_order_relaxed)) /
           static_cast<double>(bound);
  };
  const double full = std::max(part(*own_, bounds_.of_one), part(*all_, bounds_.of_all)) /
                      static_cast<double>(times);
  return full >= 1 &&
         static_cast<double>(session_bytes) * full > static_cast<double>(bounds_.of_session);
}

std::string UnreadAnswers::OfOne::Text() const {
  const auto mebibytes = [](const Sum& sum) {
    return sum.bytes.load(std::memory_order_relaxed) >> 20;
  };
  return absl::StrCat(mebibytes(*own_), " MiB of ", account_, "'s ", bounds_.of_one >> 20,
                      " MiB and ", mebibytes(*all_), " MiB of everybody's ", bounds_.of_all >> 20,
                      " MiB");
}

}  // namespace coordd
