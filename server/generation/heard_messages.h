// What the members of a generation say that they were told: a message is kept once, however many of
// them say it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// PURE. Not thread-safe.
class HeardMessages {
 public:
  // Two that say the same are one, unless they went to different process sets.
  struct Entry {
    std::shared_ptr<const v1::CoordinatorMessage> message;
    ProcessSetId to;
    int64_t bytes = 0;
    int32_t said_by = 0;  // so many; 0: it is free for another message
  };

  uint32_t Keep(const v1::CoordinatorMessage& message, ProcessSetId to);
  // Whoever had said these is gone. What nobody else has said is forgotten.
  void Release(absl::Span<const uint32_t> ids);
  int64_t Free(int64_t most);  // as Remains::Free: nobody asks for any of them again

  const Entry& at(uint32_t id) const { return entries_[id]; }
  int64_t bytes() const { return bytes_; }  // of memory, in all

 private:
  static std::string KeyOf(const v1::CoordinatorMessage& message, ProcessSetId to);

  std::vector<Entry> entries_;  // by id
  std::vector<uint32_t> free_;
  absl::flat_hash_map<std::string, uint32_t> by_key_;
  int64_t bytes_ = 0;
};

}  // namespace coordd
