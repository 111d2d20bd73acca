// The job's key-value store.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c_api/c_api_internal.h"
#include "common/base/clock.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace coordd {
namespace {

// What the library puts before a program's keys ("program/") is part of them at coordd.
constexpr size_t kMaxKeyBytes = Store::kMaxKeyBytes - 8;

// An empty one is refused where there may be none.
absl::Status CheckKey(absl::string_view key) {
  if (key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a store key of ", key.size(), " bytes: expected 1 to ", kMaxKeyBytes));
  }
  if (IsUtf8(key)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("store key ", PrintableText(key), " is not UTF-8, which keys have to be"));
}

absl::StatusOr<absl::Time> CheckedDeadline(const coordd_worker_t* worker, const char* key,
                                           double timeout_seconds) {
  if (worker == nullptr) return NullArgument("worker");
  if (key == nullptr) return NullArgument("key");
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFromSeconds(timeout_seconds));
  return Clock::Real().Now() + timeout;
}

// Where a value is longer than the caller's buffer only its size is given.
absl::Status GiveValue(absl::string_view key, absl::string_view value, void* buffer,
                       size_t capacity_bytes, size_t* size_bytes) {
  if (size_bytes != nullptr) *size_bytes = value.size();
  if (value.size() > capacity_bytes) {
    return absl::OutOfRangeError(absl::StrCat("key ", key, ": its value has ", value.size(),
                                              " bytes, the buffer ", capacity_bytes));
  }
  if (!value.empty()) std::memcpy(buffer, value.data(), value.size());
  return absl::OkStatus();
}

absl::Status CheckBytes(const char* what, const void* bytes, size_t size) {
  return bytes == nullptr && size > 0 ? NullArgument(what) : absl::OkStatus();
}

absl::Status CheckValue(const char* key, const void* value, size_t size_bytes) {
  COORDD_RETURN_IF_ERROR(CheckBytes("value", value, size_bytes));
  return Store::CheckValue(key, size_bytes);
}

std::string Bytes(const void* bytes, size_t size) {
  return size == 0 ? std::string() : std::string(static_cast<const char*>(bytes), size);
}

absl::StatusOr<std::vector<std::string>> Keys(const char* const* keys, size_t count) {
  if (keys == nullptr && count > 0) return NullArgument("keys");
  std::vector<std::string> all;
  for (size_t i = 0; i < count; ++i) {
    if (keys[i] == nullptr) return NullArgument("one of the keys");
    COORDD_RETURN_IF_ERROR(CheckKey(keys[i]));
    all.emplace_back(keys[i]);
  }
  return all;
}

// The values of all keys, as soon as they are there.
absl::StatusOr<std::vector<std::string>> GetAll(Store& store, const std::vector<std::string>& keys,
                                                absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(auto found, store.Look(keys, /*values=*/true, deadline));
  std::vector<std::string> values;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!found[i].has_value()) {
      COORDD_ASSIGN_OR_RETURN(found[i], store.Get(keys[i], deadline));
    }
    values.push_back(*std::move(found[i]));
  }
  return values;
}

}  // namespace
}  // namespace coordd

using coordd::AtBorder;
using coordd::Bytes;
using coordd::CheckBytes;
using coordd::CheckedDeadline;
using coordd::CheckValue;
using coordd::GiveValue;

extern "C" {

coordd_status_t coordd_store_set(coordd_worker_t* worker, const char* key, const void* value,
                                 size_t size_bytes, double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    COORDD_RETURN_IF_ERROR(CheckValue(key, value, size_bytes));
    return worker->worker->store().Set(key, Bytes(value, size_bytes), deadline);
  });
}

coordd_status_t coordd_store_get(coordd_worker_t* worker, const char* key, void* buffer,
                                 size_t capacity_bytes, size_t* size_bytes,
                                 double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    COORDD_RETURN_IF_ERROR(CheckBytes("buffer", buffer, capacity_bytes));
    COORDD_ASSIGN_OR_RETURN(const std::string value, worker->worker->store().Get(key, deadline));
    return GiveValue(key, value, buffer, capacity_bytes, size_bytes);
  });
}

coordd_status_t coordd_store_add(coordd_worker_t* worker, const char* key, int64_t delta,
                                 int64_t* sum, double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    COORDD_ASSIGN_OR_RETURN(const int64_t total, worker->worker->store().Add(key, delta, deadline));
    if (sum != nullptr) *sum = total;
    return absl::OkStatus();
  });
}

coordd_status_t coordd_store_compare_set(coordd_worker_t* worker, const char* key,
                                         const void* expected, size_t expected_bytes,
                                         const void* desired, size_t desired_bytes, void* buffer,
                                         size_t capacity_bytes, size_t* size_bytes,
                                         double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    COORDD_RETURN_IF_ERROR(CheckValue(key, desired, desired_bytes));
    COORDD_RETURN_IF_ERROR(CheckBytes("expected", expected, expected_bytes));
    COORDD_RETURN_IF_ERROR(CheckBytes("buffer", buffer, capacity_bytes));
    std::optional<std::string> wanted;
    if (expected != nullptr) wanted = Bytes(expected, expected_bytes);
    COORDD_ASSIGN_OR_RETURN(const std::optional<std::string> now,
                            worker->worker->store().CompareSet(
                                key, std::move(wanted), Bytes(desired, desired_bytes), deadline));
    if (!now.has_value())
      return absl::NotFoundError(absl::StrCat("key ", key, " is missing, a value was expected"));
    return GiveValue(key, *now, buffer, capacity_bytes, size_bytes);
  });
}

coordd_status_t coordd_store_append(coordd_worker_t* worker, const char* key, const void* value,
                                    size_t value_bytes, size_t* size_bytes,
                                    double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    COORDD_RETURN_IF_ERROR(CheckValue(key, value, value_bytes));
    COORDD_ASSIGN_OR_RETURN(const int64_t bytes, worker->worker->store().Append(
                                                     key, Bytes(value, value_bytes), deadline));
    if (size_bytes != nullptr) *size_bytes = static_cast<size_t>(bytes);
    return absl::OkStatus();
  });
}

coordd_status_t coordd_store_delete(coordd_worker_t* worker, const char* key, int32_t* deleted,
                                    double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    COORDD_ASSIGN_OR_RETURN(const bool was_there, worker->worker->store().Delete(key, deadline));
    if (deleted != nullptr) *deleted = was_there ? 1 : 0;
    return absl::OkStatus();
  });
}

coordd_status_t coordd_store_check(coordd_worker_t* worker, const char* const* keys, size_t count,
                                   int32_t* there, double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, "", timeout_seconds));
    if (there == nullptr) return coordd::NullArgument("there");
    COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> all, coordd::Keys(keys, count));
    COORDD_ASSIGN_OR_RETURN(const auto found,
                            worker->worker->store().Look(all, /*values=*/false, deadline));
    *there = 1;
    for (const auto& one : found) *there = one.has_value() ? *there : 0;
    return absl::OkStatus();
  });
}

coordd_status_t coordd_store_get_all(coordd_worker_t* worker, const char* const* keys, size_t count,
                                     void* buffer, size_t capacity_bytes, size_t* sizes_bytes,
                                     double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, "", timeout_seconds));
    COORDD_RETURN_IF_ERROR(CheckBytes("buffer", buffer, capacity_bytes));
    if (sizes_bytes == nullptr && count > 0) return coordd::NullArgument("sizes_bytes");
    COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> all, coordd::Keys(keys, count));
    COORDD_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                            coordd::GetAll(worker->worker->store(), all, deadline));
    size_t total = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      sizes_bytes[i] = values[i].size();
      total += values[i].size();
    }
    if (total > capacity_bytes) {
      return absl::OutOfRangeError(absl::StrCat(
          "the values of ", coordd::Counted(static_cast<int64_t>(count), "key"), " have ",
          coordd::Counted(static_cast<int64_t>(total), "byte"), ", the buffer ", capacity_bytes));
    }
    char* to = static_cast<char*>(buffer);
    for (const std::string& value : values) to = std::copy(value.begin(), value.end(), to);
    return absl::OkStatus();
  });
}

coordd_status_t coordd_store_count(coordd_worker_t* worker, const char* prefix, int64_t* keys,
                                   double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, prefix, timeout_seconds));
    if (keys == nullptr) return coordd::NullArgument("keys");
    COORDD_ASSIGN_OR_RETURN(*keys, worker->worker->store().Count(prefix, deadline));
    return absl::OkStatus();
  });
}

}  // extern "C"
