#include "worker/transport/tcp/tcp_operation.h"

#include "common/base/check.h"
#include "worker/transport/tcp/tcp_frame.h"

namespace coordd {
namespace {

// Memory that stays when the messages of a rank that was late have been received.
constexpr int64_t kSpareBytesMax = int64_t{1} << 20;

}  // namespace

void LinkMemory::End(TcpOperation& operation, absl::Status status) {
  ended_.push_back({std::move(operation.done), std::move(operation.taken), std::move(status),
                    operation.landing});
  operation.done = nullptr;
  operation.taken = nullptr;
  operations_.GiveBack(operation);
  --pending_;
}

void LinkMemory::CallEnded() {
  called_.swap(ended_);
  for (Ended& each : called_) {
    if (each.taken == nullptr) {
      std::move(each.done)(std::move(each.status));
    } else if (each.status.ok()) {
      std::move(each.taken)(each.bytes);
    } else {
      std::move(each.taken)(std::move(each.status));
    }
  }
  called_.clear();
}

KeptSmall& LinkMemory::NewKept(size_t size_bytes, bool is_with_sender) {
  KeptSmall& kept = kept_.New();
  kept.size_bytes = size_bytes;
  kept.is_with_sender = is_with_sender;
  kept.is_whole = false;
  kept.receive = nullptr;
  if (is_with_sender) return kept;
  if (!spare_buffers_.empty() &&
      spare_buffers_.back().size_bytes() >= static_cast<int64_t>(size_bytes)) {
    kept.bytes = std::move(spare_buffers_.back());
    spare_buffers_.pop_back();
    spare_bytes_ -= kept.bytes.size_bytes();
  } else {
    kept.bytes = AlignedBuffer(static_cast<int64_t>(size_bytes));
  }
  COORDD_CHECK(kept.bytes.data() != nullptr);  // as elsewhere, no memory is the end
  return kept;
}

void LinkMemory::GiveBack(KeptSmall& kept) {
  if (kept.bytes.data() != nullptr && spare_bytes_ + kept.bytes.size_bytes() <= kSpareBytesMax) {
    spare_bytes_ += kept.bytes.size_bytes();
    spare_buffers_.push_back(std::move(kept.bytes));
  }
  kept.bytes = AlignedBuffer();
  kept_.GiveBack(kept);
}

}  // namespace coordd
