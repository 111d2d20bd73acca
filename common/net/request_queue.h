// Requests that wait for a thread that answers them: urgent ones first.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/net/http_request.h"

namespace coordd {

// Thread-safe. It is bounded by its caller, who has one request of each connection in it.
class RequestQueue {
 public:
  struct Asked {
    uint64_t id = 0;  // of the connection; of two requests, the smaller one is answered first
    HttpRequest request;
  };

  // `urgent`: paths. `one_at_a_time`: sets of paths; from when one of a set is given out until Done
  // the others of it wait, and take no thread.
  explicit RequestQueue(std::set<std::string> urgent,
                        std::vector<std::set<std::string>> one_at_a_time = {})
      : urgent_paths_(std::move(urgent)), sets_(std::move(one_at_a_time)), busy_(sets_.size()) {}

  bool has_urgent_paths() const { return !urgent_paths_.empty(); }

  void Add(Asked asked);
  // Whether the request waited still: nobody answers it now.
  bool Remove(uint64_t id);
  // Waits for one. `urgent_only`: the thread is theirs alone. nullopt: Stop was called.
  std::optional<Asked> Next(bool urgent_only);
  // One of this path, which Next has given out, is answered.
  void Done(const std::string& path);
  void Stop();

 private:
  using Waiting = std::map<uint64_t, HttpRequest>;

  std::optional<size_t> SetOf(const std::string& path) const;
  Waiting::iterator FirstThatMay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const std::set<std::string> urgent_paths_;
  const std::vector<std::set<std::string>> sets_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar some_, urgent_some_;  // the second is awaited by those who are for urgent ones alone
  Waiting ordinary_ ABSL_GUARDED_BY(mu_);
  Waiting urgent_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> busy_ ABSL_GUARDED_BY(mu_);  // by set
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
