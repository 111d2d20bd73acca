// The process sets that survivors of a generation say, who say the same as a rule, and many.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordd/v1/session.pb.h"
#include "server/model/graveyard.h"

namespace coordd {

// What one says, part by part. A job may have a hundred thousand sets: no part looks at what the
// ones before hold. PURE. Not thread-safe.
class SaidSets {
 public:
  // INVALID_ARGUMENT: they are none of a generation of `size` ranks, or more than a job may have.
  absl::Status Add(const v1::ProcessSets& part, int32_t size);

  bool empty() const { return sets_ == nullptr; }
  int64_t space() const { return space_; }  // in bytes of memory

 private:
  friend class KeptSets;

  std::unique_ptr<v1::ProcessSets> sets_;
  std::string digest_;  // of its parts, in order
  int64_t space_ = 0;
};

// What is kept of those who have said all of it: the same once, as long as somebody has it. PURE.
// Not thread-safe.
class KeptSets {
 public:
  struct Kept {
    std::shared_ptr<const v1::ProcessSets> sets;  // null: nothing was said
    int64_t space = 0;                            // of all who have it
    // Whether nobody else has said this.
    bool IsAlone() const { return sets.use_count() == 1; }
  };

  // Compared with a few that were said last, by the digests of their parts.
  static constexpr size_t kKnown = 4;

  Kept Keep(SaidSets said);
  void Forget(SaidSets said) { dead_->push_back(std::move(said.sets_)); }
  // What nobody has any more, to be freed in parts; null: nothing.
  std::unique_ptr<Remains> TakeDead();

 private:
  using Dead = std::vector<std::unique_ptr<v1::ProcessSets>>;
  struct Known {
    std::string digest;
    std::weak_ptr<const v1::ProcessSets> sets;
  };

  const std::shared_ptr<Dead> dead_ = std::make_shared<Dead>();
  std::array<Known, kKnown> known_;
  size_t next_ = 0;
};

}  // namespace coordd
