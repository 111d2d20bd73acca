#include "worker/host/loopback_backend.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/base/copy_bytes.h"
#include "worker/interfaces/collective_args.h"

namespace coordd {

LoopbackBackend::~LoopbackBackend() {
  for (auto& [args, done] : launched_) std::move(done)(CollectivesAborted());
}

bool LoopbackBackend::Supports(MemoryKind memory, DataType, CollectiveKind) const {
  return memory == MemoryKind::kHost;
}

absl::Status LoopbackBackend::Connect(const GroupLayout& layout, Store&, absl::Time) {
  if (layout.size() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the loopback backend got a world of ", layout.size(), ", expected 1"));
}

absl::Status LoopbackBackend::DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) {
  return ValidateGroup(group, ranks, Rank{0}, 1);  // all groups are the same one rank
}

absl::Status LoopbackBackend::Launch(CollectiveArgs args, Done done) {
  COORDD_RETURN_IF_ERROR(ValidateArgs(args, Rank{0}, 1));
  launched_.emplace_back(std::move(args), std::move(done));
  return absl::OkStatus();
}

bool LoopbackBackend::Progress() {
  std::deque<std::pair<CollectiveArgs, Done>> batch;
  batch.swap(launched_);  // a `done` may Launch
  for (auto& [args, done] : batch) {
    if (aborted_.load(std::memory_order_acquire)) {
      std::move(done)(CollectivesAborted());
      continue;
    }
    CopyBytes(args.output.data(), args.input.data(), SizeOf(args.input));
    std::move(done)(absl::OkStatus());
  }
  return !batch.empty();
}

absl::StatusOr<absl::Span<std::byte>> LoopbackBackend::AllocateFusionBuffer(int64_t size_bytes) {
  AlignedBuffer buffer(size_bytes);
  if (buffer.data() == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a fusion buffer of ", size_bytes, " bytes"));
  }
  fusion_buffers_.push_back(std::move(buffer));
  return fusion_buffers_.back().span();
}

}  // namespace coordd
