// A member's side of the slots of its process sets (docs/design/control.md, "Gear 2: slots").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/protocol/slot_dictionary.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/base/shared_spec.h"

namespace coordd {

// PURE; part of WorkerState. What it knows is exactly what coordd has said so far in the
// generation, to all members at the same point of their streams.
class SlotTable {
 public:
  explicit SlotTable(int64_t capacity = 0) : capacity_(capacity) {}

  // coordd has given a slot to a tensor that it has just planned, and that this rank had submitted
  // as `spec`. False: it is not the set's next one.
  bool Learn(int64_t slot, const SharedSpec& spec);
  // The tensor that a plan means; nullptr: none that coordd could name.
  const std::string* NameOf(ProcessSetId process_set, int64_t slot);

  // Reports the tensor in the message that Take makes next; whether it has a slot that means just
  // this spec.
  bool Report(const TensorSpec& spec);
  // Says in that message how much of the set this rank knows: at each report that has no slot.
  void Mention(ProcessSetId process_set);
  // What is to be reported, and how much is known. Empty: nothing.
  std::vector<v1::CachedTensors> Take();

  void Forget(ProcessSetId process_set) { sets_.erase(process_set); }
  // Another coordd, or another generation, begins anew.
  void Clear(int64_t capacity);

 private:
  struct Set {
    SlotDictionary<SharedSpec> slots;
    std::vector<int64_t> reported;  // since Take
    int64_t known_told = 0;
    bool mentioned = false;
  };

  int64_t capacity_;
  std::map<ProcessSetId, Set> sets_;
};

}  // namespace coordd
