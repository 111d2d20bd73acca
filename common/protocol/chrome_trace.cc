#include "common/protocol/chrome_trace.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/protocol/protocol_bounds.h"
#include "common/protocol/tensor_spec.h"

namespace coordd {
namespace {

std::string LaneName(int32_t lane, size_t track) {
  const std::string name = lane < 0 ? "device"
                           : lane < kFirstScheduleLane
                               ? (lane == 0 ? "negotiated" : absl::StrCat("process set ", lane))
                               : absl::StrCat("schedule ", lane - kFirstScheduleLane + 1);
  return track == 0 ? name : absl::StrCat(name, " (", track + 1, ")");
}

}  // namespace

std::string JsonString(absl::string_view text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&json, "\\", absl::string_view(&c, 1));
    } else if (absl::ascii_iscntrl(c)) {
      absl::StrAppendFormat(&json, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      json += c;
    }
  }
  return json + "\"";
}

std::string PhaseName(absl::string_view prefix, v1::CollectiveKind kind) {
  return absl::AsciiStrToUpper(
      absl::StrCat(prefix, prefix.empty() ? "" : "_", Name(static_cast<CollectiveKind>(kind))));
}

void ChromeTrace::AddMetadata(absl::string_view what, int32_t track, absl::string_view value,
                              std::string* out) const {
  absl::StrAppend(out, "{\"ph\":\"M\",\"pid\":", rank_, ",\"tid\":", track, ",\"name\":\"", what,
                  "_name\",\"args\":{\"name\":", JsonString(value), "}},\n");
  absl::StrAppend(out, "{\"ph\":\"M\",\"pid\":", rank_, ",\"tid\":", track, ",\"name\":\"", what,
                  "_sort_index\",\"args\":{\"sort_index\":", what == "process" ? rank_ : track,
                  "}},\n");
}

void ChromeTrace::AddProcess(absl::string_view name, std::string* out) const {
  AddMetadata("process", 0, name, out);
}

void ChromeTrace::AddOrigin(std::string* out) const {
  constexpr absl::string_view kName = "start_time_since_epoch_in_micros";
  absl::StrAppend(out, "{\"ph\":\"M\",\"pid\":", rank_, ",\"name\":\"", kName, "\",\"args\":{\"",
                  kName, "\":", origin_ns_ / 1000, "}},\n");
}

void ChromeTrace::AddSlice(absl::string_view name, int32_t track, int64_t from_ns, int64_t to_ns,
                           absl::string_view args, std::string* out) const {
  if (to_ns <= from_ns) return;
  // Microseconds, as the format wants it, and nanoseconds behind the point.
  absl::StrAppendFormat(out, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", rank_,
                        track, static_cast<double>(from_ns - origin_ns_) / 1e3,
                        static_cast<double>(to_ns - from_ns) / 1e3);
  absl::StrAppend(out, "\"name\":", JsonString(name), args.empty() ? "" : ",\"args\":{", args,
                  args.empty() ? "" : "}", "},\n");
}

int32_t ChromeTrace::TrackOf(int32_t lane, int64_t from_ns, int64_t to_ns, std::string* out) {
  std::vector<Track>& tracks = lanes_[lane];
  auto track = std::find_if(tracks.begin(), tracks.end(),
                            [&](const Track& one) { return one.free_at_ns <= from_ns; });
  if (track == tracks.end() && tracks.size() < kTracksMax) {
    AddMetadata("thread", ++last_track_, LaneName(lane, tracks.size()), out);
    track = tracks.insert(tracks.end(), Track{last_track_, 0});
  }
  if (track == tracks.end()) track = std::prev(track);
  track->free_at_ns = std::max(track->free_at_ns, to_ns);
  return track->number;
}

bool ChromeTrace::BeginsCycle(const v1::TraceBatch& batch, const BatchPhases& at) {
  if (batch.lane() >= kFirstScheduleLane) return batch.begins_step();
  const bool begins = at.submitted >= cycle_end_ns_;
  cycle_end_ns_ = std::max(cycle_end_ns_, at.done);
  return begins;
}

void ChromeTrace::AddBatches(const v1::TraceBatches& batches, int64_t offset_ns,
                             absl::FunctionRef<int64_t(const v1::TraceBatch&)> wait_ns,
                             std::string* out) {
  const std::string backend = batches.backend().empty() ? "DATA_PLANE" : batches.backend();
  for (const v1::TraceBatch& batch : batches.batches()) {
    const BatchPhases at(batch);
    const auto add = [&](absl::string_view name, int32_t track, int64_t from, int64_t to,
                         absl::string_view args = "") {
      AddSlice(name, track, from + offset_ns, to + offset_ns, args, out);
    };
    const int32_t track = TrackOf(batch.lane(), at.submitted + offset_ns, at.done + offset_ns, out);
    const std::string tensor = batch.name() >= 0 && batch.name() < batches.names_size()
                                   ? batches.names(batch.name())
                                   : std::string("?");
    const std::string title =
        batch.tensors() > 1 ? absl::StrCat(tensor, " and ", batch.tensors() - 1, " more") : tensor;
    if (BeginsCycle(batch, at) && mark_steps_) {
      absl::StrAppendFormat(out,
                            "{\"ph\":\"i\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"s\":\"p\",\"name\":"
                            "\"CYCLE_START\"},\n",
                            rank_, track,
                            static_cast<double>(at.submitted + offset_ns - origin_ns_) / 1e3);
    }
    std::string about =
        absl::StrCat("\"kind\":", JsonString(PhaseName("", batch.kind())),
                     ",\"batch\":", batch.sequence(), ",\"tensors\":", batch.tensors(),
                     ",\"bytes\":", batch.bytes(), ",\"process_set\":", batch.process_set());
    if (batch.algorithm() > 0 && batch.algorithm() <= batches.algorithms_size())
      absl::StrAppend(&about,
                      ",\"algorithm\":", JsonString(batches.algorithms(batch.algorithm() - 1)));
    add(title, track, at.submitted, at.done, about);
    const bool scheduled = batch.lane() >= kFirstScheduleLane;
    add(scheduled ? "WAIT_FOR_OTHER_TENSOR_DATA" : PhaseName("NEGOTIATE", batch.kind()), track,
        at.submitted, at.ready);
    add("QUEUE", track, at.ready, at.started);
    add("MEMCPY_IN_FUSION_BUFFER", track, at.started, at.launched);
    if (batch.on_device()) {
      const int64_t turn = at.TurnAt(batch);
      add(PhaseName("NCCL", batch.kind()), track, at.launched, at.ended,
          absl::StrFormat("\"enqueued_after_us\":%.3f,\"begun_after_us\":%.3f",
                          static_cast<double>(at.EnqueuedAt(batch) - at.launched) / 1e3,
                          static_cast<double>(turn - at.launched) / 1e3));
      add(title, TrackOf(kDeviceLane, turn + offset_ns, at.ended + offset_ns, out), turn, at.ended,
          about);
    } else {
      add(PhaseName(backend, batch.kind()), track, at.launched, at.ended);
    }
    add("WAIT_FOR_OTHER_RANKS", track, at.launched,
        at.launched + std::clamp<int64_t>(wait_ns(batch), 0, batch.exchange_ns()));
    add("MEMCPY_OUT_FUSION_BUFFER", track, at.ended, at.done);
  }
}

}  // namespace coordd
