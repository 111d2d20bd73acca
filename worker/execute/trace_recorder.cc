#include "worker/execute/trace_recorder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "worker/execute/batch_job.h"

namespace coordd {
namespace {

constexpr absl::string_view kCut = "...";

// In place: two copies of it would take as long as all the rest.
void Fill(const BatchJob& batch, absl::Time done, TraceRecord& record) {
  record.lane = batch.lane();
  record.sequence = batch.sequence();
  record.kind = batch.kind();
  record.process_set = batch.process_set();
  record.tensors = static_cast<int32_t>(batch.tensors().size());
  record.bytes = 0;
  if (HasPayload(batch.kind())) {
    for (const TensorJob& tensor : batch.tensors()) record.bytes += SizeBytes(tensor.spec());
  }
  record.begins_step = batch.begins_cycle;
  record.algorithm = batch.algorithm;
  record.times = batch.times;
  record.done = done;
  CopyName(batch.tensors().front().spec().name, record.name);
}

}  // namespace

void CopyName(absl::string_view name, std::array<char, 64>& to) {
  if (name.size() < to.size()) {
    std::memcpy(to.data(), name.data(), name.size());
    to[name.size()] = '\0';
    return;
  }
  size_t bytes = to.size() - 1 - kCut.size();
  // 10xxxxxx continues a character.
  while (bytes > 0 && (static_cast<unsigned char>(name[bytes]) & 0xC0) == 0x80) --bytes;
  std::memcpy(to.data(), name.data(), bytes);
  std::memcpy(to.data() + bytes, kCut.data(), kCut.size());
  to[bytes + kCut.size()] = '\0';
}

void TraceRecorder::Begin(For whom, size_t records) {
  MutexLock lock(&mu_);
  Ring& ring = rings_[static_cast<size_t>(whom)];
  ring = Ring();
  ring.on = true;
  ring.room = std::clamp<size_t>(records, 1, kRecordsMax);
  on_.store(true, std::memory_order_relaxed);
}

void TraceRecorder::Add(const BatchJob& batch, absl::Time done) {
  MutexLock lock(&mu_);
  const TraceRecord* filled = nullptr;
  for (Ring& ring : rings_) {
    if (!ring.on) continue;
    if (ring.records.size() < ring.room) ring.records.emplace_back();
    TraceRecord& record = ring.records[static_cast<size_t>(ring.added++) % ring.room];
    if (filled == nullptr) {
      Fill(batch, done, record);
    } else {
      record = *filled;
    }
    filled = &record;
  }
}

TraceRecorder::Recorded TraceRecorder::TakeLocked(Ring& ring) {
  Recorded taken;
  taken.records = std::exchange(ring.records, {});
  const int64_t added = std::exchange(ring.added, 0);
  taken.dropped = added - static_cast<int64_t>(taken.records.size());
  if (taken.dropped > 0) {
    const auto oldest = taken.records.begin() + added % static_cast<int64_t>(taken.records.size());
    std::rotate(taken.records.begin(), oldest, taken.records.end());
  }
  return taken;
}

TraceRecorder::Recorded TraceRecorder::Take(For whom) {
  MutexLock lock(&mu_);
  return TakeLocked(rings_[static_cast<size_t>(whom)]);
}

TraceRecorder::Recorded TraceRecorder::End(For whom) {
  MutexLock lock(&mu_);
  Recorded taken = TakeLocked(rings_[static_cast<size_t>(whom)]);
  rings_[static_cast<size_t>(whom)] = Ring();
  const bool on = std::any_of(rings_.begin(), rings_.end(), [](const Ring& r) { return r.on; });
  on_.store(on, std::memory_order_relaxed);
  return taken;
}

}  // namespace coordd
