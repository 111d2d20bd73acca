#include "server/model/job_record.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/model/digest.h"

namespace coordd {
namespace {

constexpr absl::string_view kJobPrefix = "job/";
constexpr absl::string_view kDrainPrefix = "drain/";
constexpr char kServerKey[] = "server";

absl::Status NotARecord(const std::string& key) {
  return absl::DataLossError(absl::StrCat("record ", key, " of coordd's state cannot be read"));
}

}  // namespace

absl::StatusOr<RestoredState> ParseRecords(const StoredState& stored) {
  const int64_t stride = stored.adopted ? kAdoptionStride : 0;
  RestoredState state;
  state.cluster_id = stored.cluster_id;
  state.epoch = stored.epoch;
  state.last_forgotten = Generation{stride};
  for (const auto& [key, value] : stored.records) {
    absl::string_view name = key;
    if (absl::ConsumePrefix(&name, kJobPrefix)) {
      v1::JobRecord record;
      if (!record.ParseFromString(value)) return NotARecord(key);
      record.set_generation(record.generation() + stride);
      state.jobs[std::string(name)] = std::move(record);
    } else if (absl::ConsumePrefix(&name, kDrainPrefix)) {
      v1::DrainRecord record;
      if (!record.ParseFromString(value)) return NotARecord(key);
      state.drains[std::string(name)] = std::move(record);
    } else if (key == kServerKey) {
      v1::ServerRecord record;
      if (!record.ParseFromString(value)) return NotARecord(key);
      state.last_forgotten = Generation{record.forgotten_generation() + stride};
    }
    // Others are of a newer coordd, which will want them again.
  }
  return state;
}

StateWrite JobWrite(const std::string& job, const v1::JobRecord& record) {
  return JobWrite(job, record.SerializeAsString());
}

StateWrite JobWrite(const std::string& job, std::string record) {
  return {absl::StrCat(kJobPrefix, job), std::move(record)};
}

StateWrite JobRemoval(const std::string& job) {
  return {absl::StrCat(kJobPrefix, job), std::nullopt};
}

StateWrite DrainWrite(const std::string& job, const v1::DrainRecord& record) {
  const std::string key = absl::StrCat(kDrainPrefix, job);
  if (record.drains().empty() && record.nodes().empty()) return {key, std::nullopt};
  return {key, record.SerializeAsString()};
}

StateWrite ForgottenWrite(Generation last_forgotten) {
  v1::ServerRecord record;
  record.set_forgotten_generation(ToInt(last_forgotten));
  return {kServerKey, record.SerializeAsString()};
}

std::string TokenHash(absl::string_view cluster_id, absl::string_view job,
                      absl::string_view token) {
  if (token.empty()) return "";
  const absl::string_view nul("\0", 1);
  return Sha256(absl::StrCat(cluster_id, nul, job, nul, token));
}

}  // namespace coordd
