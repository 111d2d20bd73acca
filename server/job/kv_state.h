// The key-value service of one job: how data-plane addresses and NCCL ids travel.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "server/model/effects.h"

namespace coordd {

struct KvBounds {
  int64_t max_keys = 1 << 20;
  int64_t max_bytes = int64_t{256} << 20;  // keys and values together
  int64_t max_waiting = 1 << 20;           // Gets that wait: eight per rank at the largest job
};

// PURE. Not thread-safe.
//
// Keys that start with `gen/<g>/` belong to generation g: they can be used from Open(g) to
// Close(g), and then they are gone; Gets that wait for one are answered with FAILED_PRECONDITION.
// All others live as long as the job.
class KvState {
 public:
  KvState(std::string job, const KvBounds& bounds);

  static std::string GenerationPrefix(Generation generation);  // "gen/7/"

  void Open(Generation generation);
  void Close(Generation generation, Effects& effects);

  // Answers now, or for a Get of a missing key as soon as it is set. Whatever answers come of it
  // are appended to `effects`.
  void Call(const StoreCall& call, Effects& effects);
  // What a client had stored before coordd was started again. Nothing where there is a value, or
  // where there may be none.
  void Restore(const std::string& key, std::string value, Effects& effects);
  void Cancel(CallId call);  // no answer is wanted any more

  // The job is over: answers whoever waits and forgets everything.
  void Clear(const absl::Status& why, Effects& effects);

  int64_t keys() const { return static_cast<int64_t>(values_.size()); }
  int64_t waiting() const { return static_cast<int64_t>(key_of_call_.size()); }
  absl::Status CheckConsistency() const;

 private:
  absl::Status CheckKey(absl::string_view key) const;
  absl::Status CheckScope(absl::string_view key) const;
  absl::Status CheckRoom(absl::string_view key, size_t value_bytes) const;
  absl::Status Set(const StoreSet& set, Effects& effects);
  absl::Status Add(const StoreAdd& add, int64_t& sum, Effects& effects);
  absl::Status DeletePrefix(absl::string_view prefix, int64_t& deleted);
  absl::Status CompareSet(const StoreCompareSet& request, StoreReply& reply, Effects& effects);
  absl::Status Append(const StoreAppend& append, int64_t& bytes, Effects& effects);
  absl::Status Delete(const StoreDelete& request, int64_t& deleted);
  absl::Status Look(const StoreLook& look, std::vector<std::optional<std::string>>& found) const;
  int64_t Count(absl::string_view prefix) const;
  void Get(CallId call, const StoreGet& get, Effects& effects);
  void Put(const std::string& key, std::string value, Effects& effects);
  std::map<std::string, std::string>::iterator Erase(
      std::map<std::string, std::string>::iterator it);

  const std::string job_;
  const KvBounds bounds_;
  Generation generation_;  // the last that was opened; 0: none
  bool open_ = false;
  std::map<std::string, std::string> values_;
  int64_t bytes_ = 0;
  std::map<std::string, std::vector<CallId>> waiting_;  // by key, in order of arrival
  std::map<CallId, std::string> key_of_call_;
};

}  // namespace coordd
