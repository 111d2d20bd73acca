#include "worker/execute/batch_memory.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/execute/work.h"

namespace coordd {
namespace {

absl::Status NoMemory(const TensorSpec& spec, int64_t bytes, absl::string_view why = "") {
  return absl::ResourceExhaustedError(absl::StrCat("tensor ", spec.name,
                                                   ": no memory for a result of ", bytes, " bytes",
                                                   why.empty() ? "" : ": ", why));
}

}  // namespace

void BatchMemory::UseDevice(int32_t device, AllocateOnDevice allocate, DiscardOnDevice discard) {
  device_ = device;
  allocate_ = std::move(allocate);
  discard_ = std::move(discard);
}

void BatchMemory::Move(const TensorMove& move) {
  if (move.bytes == 0) return;
  if (move.kind == TensorMove::Kind::kCopy && move.to == move.from) return;
  if (on_device()) {
    moves_.push_back(move);
  } else {
    RunOnHost(move);
  }
}

void BatchMemory::CopyAndScale(const TensorSpec& spec, double factor, std::byte* to,
                               const std::byte* from, int64_t bytes) {
  if (factor == 1.0) return Copy(to, from, bytes);
  Move({.kind = TensorMove::Kind::kScale,
        .dtype = spec.dtype,
        .factor = factor,
        .to = to,
        .from = from,
        .bytes = bytes});
}

void BatchMemory::FillIdentity(const TensorSpec& spec, std::byte* to, int64_t bytes) {
  Move({.kind = TensorMove::Kind::kFill,
        .dtype = spec.dtype,
        .op = spec.op == ReduceOp::kAverage ? ReduceOp::kSum : spec.op,
        .to = to,
        .bytes = bytes});
}

absl::StatusOr<std::byte*> BatchMemory::Discard(const TensorSpec& spec, int64_t bytes) {
  if (on_device()) {
    absl::StatusOr<std::byte*> place = discard_(bytes);
    if (!place.ok()) return NoMemory(spec, bytes, place.status().message());
    return place;
  }
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<std::byte[]> memory, Allocate(spec, bytes));
  discarded_.push_back(std::move(memory));
  return discarded_.back().get();
}

absl::StatusOr<std::shared_ptr<std::byte[]>> BatchMemory::Allocate(const TensorSpec& spec,
                                                                   int64_t bytes) {
  if (on_device()) {
    absl::StatusOr<std::shared_ptr<std::byte[]>> made = allocate_(bytes);
    if (!made.ok()) return NoMemory(spec, bytes, made.status().message());
    return made;
  }
  std::shared_ptr<std::byte[]> made = AllocateOnHost(bytes);
  if (made == nullptr) return NoMemory(spec, bytes);
  return made;
}

}  // namespace coordd
