// The job's key-value store. It includes coordd.hpp.
#ifndef COORDD_STORE_HPP_
#define COORDD_STORE_HPP_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordd/coordd.hpp"

namespace coordd {
inline namespace cpp {

// Small values for the other members: store.h says what holds. Copyable, does not own the worker,
// which outlives it. Thread-safe. Keys have no zero bytes. `timeout`: of each call.
class Store {
 public:
  explicit Store(Worker& worker, std::chrono::duration<double> timeout = std::chrono::seconds(30))
      : worker_(worker.handle()), timeout_(timeout) {}

  Expected<> TrySet(const std::string& key, const std::string& value) {
    return internal::Check(
        coordd_store_set(worker_, key.c_str(), value.data(), value.size(), timeout_.count()));
  }
  void Set(const std::string& key, const std::string& value) { TrySet(key, value).value(); }

  // Waits until somebody has set it; DEADLINE_EXCEEDED: nobody did.
  Expected<std::string> TryGet(const std::string& key) {
    std::string value(kValueBytesMax, '\0');
    size_t size = 0;
    const coordd_status_t code =
        coordd_store_get(worker_, key.c_str(), value.data(), value.size(), &size, timeout_.count());
    return Cut(code, std::move(value), size);
  }
  std::string Get(const std::string& key) { return TryGet(key).value(); }

  // The sum; a missing key counts as 0.
  Expected<int64_t> TryAdd(const std::string& key, int64_t delta) {
    int64_t sum = 0;
    const coordd_status_t code =
        coordd_store_add(worker_, key.c_str(), delta, &sum, timeout_.count());
    return Result(code, sum);
  }
  int64_t Add(const std::string& key, int64_t delta) { return TryAdd(key, delta).value(); }

  // Sets the key if its value is `expected`, or without one if the key is missing. The value that
  // it has then. NOT_FOUND: the key is missing, and a value was expected.
  Expected<std::string> TryCompareSet(const std::string& key,
                                      const std::optional<std::string>& expected,
                                      const std::string& desired) {
    std::string value(kValueBytesMax, '\0');
    size_t size = 0;
    const coordd_status_t code = coordd_store_compare_set(
        worker_, key.c_str(), expected.has_value() ? expected->data() : nullptr,
        expected.has_value() ? expected->size() : 0, desired.data(), desired.size(), value.data(),
        value.size(), &size, timeout_.count());
    return Cut(code, std::move(value), size);
  }
  std::string CompareSet(const std::string& key, const std::optional<std::string>& expected,
                         const std::string& desired) {
    return TryCompareSet(key, expected, desired).value();
  }

  // Puts the value behind the one that is there; the bytes of both.
  Expected<size_t> TryAppend(const std::string& key, const std::string& value) {
    size_t size = 0;
    const coordd_status_t code = coordd_store_append(worker_, key.c_str(), value.data(),
                                                     value.size(), &size, timeout_.count());
    return Result(code, size);
  }
  size_t Append(const std::string& key, const std::string& value) {
    return TryAppend(key, value).value();
  }

  // Whether there was such a key.
  Expected<bool> TryDelete(const std::string& key) {
    int32_t deleted = 0;
    const coordd_status_t code =
        coordd_store_delete(worker_, key.c_str(), &deleted, timeout_.count());
    return Result(code, deleted != 0);
  }
  bool Delete(const std::string& key) { return TryDelete(key).value(); }

  // Whether all keys are there now.
  Expected<bool> TryCheck(const std::vector<std::string>& keys) {
    int32_t there = 0;
    const std::vector<const char*> names = Names(keys);
    const coordd_status_t code =
        coordd_store_check(worker_, names.data(), names.size(), &there, timeout_.count());
    return Result(code, there != 0);
  }
  bool Check(const std::vector<std::string>& keys) { return TryCheck(keys).value(); }

  // Waits until somebody has set all keys; their values.
  Expected<std::vector<std::string>> TryGetAll(const std::vector<std::string>& keys) {
    const std::vector<const char*> names = Names(keys);
    std::vector<size_t> sizes(keys.size());
    std::string all(kValueBytesMax, '\0');
    coordd_status_t code = GetAll(names, all, sizes);
    if (code == COORDD_OUT_OF_RANGE) {
      all.resize(kValueBytesMax * keys.size());
      code = GetAll(names, all, sizes);
    }
    if (code != COORDD_OK) return internal::Failure<std::vector<std::string>>(code);
    std::vector<std::string> values;
    size_t at = 0;
    for (const size_t size : sizes) {
      values.push_back(all.substr(at, size));
      at += size;
    }
    return values;
  }
  std::vector<std::string> GetAll(const std::vector<std::string>& keys) {
    return TryGetAll(keys).value();
  }

  // How many keys start with the prefix.
  Expected<int64_t> TryCount(const std::string& prefix = "") {
    int64_t keys = 0;
    const coordd_status_t code =
        coordd_store_count(worker_, prefix.c_str(), &keys, timeout_.count());
    return Result(code, keys);
  }
  int64_t Count(const std::string& prefix = "") { return TryCount(prefix).value(); }

 private:
  static constexpr size_t kValueBytesMax = size_t{64} << 10;  // no value is larger

  template <typename T>
  static Expected<T> Result(coordd_status_t code, T value) {
    return code == COORDD_OK ? Expected<T>(value) : internal::Failure<T>(code);
  }
  static Expected<std::string> Cut(coordd_status_t code, std::string value, size_t size) {
    if (code != COORDD_OK) return internal::Failure<std::string>(code);
    value.resize(size);
    return value;
  }
  static std::vector<const char*> Names(const std::vector<std::string>& keys) {
    std::vector<const char*> names;
    for (const std::string& key : keys) names.push_back(key.c_str());
    return names;
  }
  coordd_status_t GetAll(const std::vector<const char*>& names, std::string& all,
                         std::vector<size_t>& sizes) {
    return coordd_store_get_all(worker_, names.data(), names.size(), all.data(), all.size(),
                                sizes.data(), timeout_.count());
  }

  coordd_worker_t* worker_;
  std::chrono::duration<double> timeout_;
};

}  // namespace cpp
}  // namespace coordd

#endif  // COORDD_STORE_HPP_
