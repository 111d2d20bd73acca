#include "worker/protocol/trace_chunks.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

int64_t Nanoseconds(absl::Duration from) {
  return std::max<int64_t>(0, absl::ToInt64Nanoseconds(from));
}

// What a record takes with a name of its own, at most.
constexpr int64_t kRecordBytesMax = 2 * kTraceRecordBytes + 64;

}  // namespace

v1::TraceBatches ToTraceBatches(absl::Span<const TraceRecord> records, absl::string_view backend) {
  v1::TraceBatches batches;
  batches.set_backend(std::string(backend));
  absl::flat_hash_map<std::string, int32_t> names;
  absl::flat_hash_map<absl::string_view, int32_t> algorithms;
  for (const TraceRecord& record : records) {
    v1::TraceBatch& batch = *batches.add_batches();
    const auto [name, is_new] = names.try_emplace(record.name.data(), batches.names_size());
    if (is_new) batches.add_names(name->first);
    batch.set_name(name->second);
    batch.set_lane(ToInt(record.lane));
    batch.set_sequence(record.sequence);
    batch.set_kind(static_cast<v1::CollectiveKind>(record.kind));
    batch.set_process_set(ToInt(record.process_set));
    batch.set_tensors(record.tensors);
    batch.set_bytes(record.bytes);
    batch.set_begins_step(record.begins_step);
    if (!record.algorithm.empty()) {
      const auto [number, is_first] =
          algorithms.try_emplace(record.algorithm, batches.algorithms_size() + 1);
      if (is_first) batches.add_algorithms(std::string(record.algorithm));
      batch.set_algorithm(number->second);
    }
    const BatchTimes& times = record.times;
    batch.set_submitted_ns(absl::ToUnixNanos(times.submitted));
    batch.set_negotiation_ns(Nanoseconds(times.ready - times.submitted));
    batch.set_queue_ns(Nanoseconds(times.started - times.ready));
    batch.set_pack_ns(Nanoseconds(times.launched - times.started));
    batch.set_exchange_ns(Nanoseconds(times.ended - times.launched));
    batch.set_unpack_ns(Nanoseconds(record.done - times.ended));
    if (times.enqueued == absl::Time()) continue;
    batch.set_on_device(true);
    batch.set_enqueue_ns(Nanoseconds(times.enqueued - times.launched));
    batch.set_device_queue_ns(Nanoseconds(times.turn - times.enqueued));
  }
  return batches;
}

std::vector<TraceRecord> Within(absl::Span<const TraceRecord> records, LaneId lane,
                                int64_t batches_per_cycle, int64_t from_cycle,
                                int64_t until_cycle) {
  absl::Time first = absl::InfiniteFuture(), last = absl::InfinitePast();
  const auto is_in = [&](const TraceRecord& record) {
    return record.lane == lane && record.sequence > from_cycle * batches_per_cycle &&
           record.sequence <= until_cycle * batches_per_cycle;
  };
  for (const TraceRecord& record : records) {
    if (!is_in(record)) continue;
    first = std::min(first, record.times.ready);
    last = std::max(last, record.done);
  }
  std::vector<TraceRecord> within;
  for (const TraceRecord& record : records) {
    const absl::Time ready = record.times.ready;
    const bool beside = record.lane != lane && ready >= first && ready <= last;
    if (beside || is_in(record)) within.push_back(record);
  }
  return within;
}

std::vector<std::string> ToTraceChunks(absl::Span<const TraceRecord> records,
                                       absl::string_view backend, const TraceClock& clock,
                                       int64_t bytes_max, int64_t& left_out) {
  std::vector<std::string> chunks;
  int64_t bytes = 0;
  const int64_t per_chunk = std::min(kMaxTraceChunkBytes, bytes_max) / kRecordBytesMax;
  // From the newest on, until there is no more room.
  while (!records.empty()) {
    const size_t count =
        std::min(records.size(), static_cast<size_t>(std::max<int64_t>(1, per_chunk)));
    v1::TraceBatches batches = ToTraceBatches(records.last(count), backend);
    batches.set_clock_offset_ns(absl::ToInt64Nanoseconds(clock.offset));
    batches.set_clock_error_ns(clock.known ? absl::ToInt64Nanoseconds(clock.error) : -1);
    std::string chunk = batches.SerializeAsString();
    bytes += static_cast<int64_t>(chunk.size());
    if (bytes > bytes_max && !chunks.empty()) break;
    chunks.push_back(std::move(chunk));
    records.remove_suffix(count);
  }
  left_out = static_cast<int64_t>(records.size());
  std::reverse(chunks.begin(), chunks.end());
  return chunks;
}

}  // namespace coordd
