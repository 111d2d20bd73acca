// The process sets that a generation finds when it begins.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/model/effects.h"
#include "server/model/graveyard.h"

namespace coordd {

// PURE. Not thread-safe. In the messages that tell them, which are kept: who has not heard of the
// generation when its members come back is told the same ones, and nothing is copied.
class FoundSets {
 public:
  using Part = std::shared_ptr<const v1::CoordinatorMessage>;

  FoundSets() = default;  // none: nobody is told
  explicit FoundSets(std::vector<Part> parts) : parts_(std::move(parts)) {}
  // `sets` are valid, and told in messages like `head`.
  FoundSets(const v1::CoordinatorMessage& head, const v1::ProcessSets& sets);

  bool empty() const { return parts_.empty(); }
  void Tell(const std::vector<SessionId>& to, Effects& effects) const;
  std::vector<const v1::ProcessSets*> parts() const;
  // Nobody is to be told any more: to be freed in parts, as far as they are nobody else's.
  static std::unique_ptr<Remains> Bury(std::shared_ptr<const FoundSets> sets);

 private:
  class Dropped;

  std::vector<Part> parts_;
};

// Makes them, one after the other, in order.
class FoundSetsMaker {
 public:
  // `last`: the highest number that one has had; 0: there is none.
  FoundSetsMaker(v1::CoordinatorMessage head, ProcessSetId last);

  void Add(ProcessSetId id, const std::vector<Rank>& ranks);
  // Those parts that are whole, as JobRecord.process_sets on the wire: behind the rest of a record
  // they are in it.
  std::string& stored() { return stored_; }
  FoundSets Finish();  // once

 private:
  void Close(bool more);

  const v1::CoordinatorMessage head_;
  const ProcessSetId last_;
  std::shared_ptr<v1::CoordinatorMessage> open_;  // null: nothing is to be told
  int64_t open_bytes_ = 0;
  std::vector<FoundSets::Part> parts_;
  std::string stored_;
};

}  // namespace coordd
