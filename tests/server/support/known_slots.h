// What a member has heard of slots, for tests that play members: some of it late.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/random.h"
#include "common/protocol/slot_dictionary.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

class KnownSlots {
 public:
  // A generation begins, in which each process set keeps so many.
  void Begin(int64_t capacity) { *this = KnownSlots(capacity); }
  KnownSlots() : KnownSlots(0) {}

  // coordd says something, which arrives when Hear takes it.
  void Say(const std::shared_ptr<const v1::CoordinatorMessage>& message);
  // Of what is under way, as much as chance will have it.
  void Hear(Random& random);
  void HearAll();

  // Adds the tensor to what is reported by slot; whether it has one.
  bool Report(int32_t set, absl::string_view name, v1::TensorsReady& ready);
  // Several, as one; whether all have one.
  bool ReportTogether(int32_t set, absl::Span<const std::string> names, v1::TensorsReady& ready);
  // Any slots of any set.
  void ReportAny(Random& random, v1::TensorsReady& ready);

 private:
  explicit KnownSlots(int64_t capacity) : capacity_(capacity) {}
  void HearNext();
  struct Nothing {};

  int64_t capacity_;
  std::deque<std::shared_ptr<const v1::CoordinatorMessage>> under_way_;
  std::map<int32_t, SlotDictionary<Nothing>> sets_;
};

}  // namespace coordd
