// What workers and operators may say to coordd, sensible and not, by chance.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/random.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/model/effects.h"
#include "tests/server/support/known_slots.h"

namespace coordd {

// What a worker knows.
struct KnownWorker {
  std::string job;
  Generation generation;
  int64_t generations = 0;  // how many it has been in
  int32_t rank = 0;
  int32_t size = 1;
  int64_t requests = 0;                    // for process sets
  std::map<std::string, int32_t> by_name;  // those that it has asked for; 0: no answer yet
  bool owes_report = false;
  struct Schedule {
    int64_t id = 0;
    bool acknowledged = false, frozen = false, cut = false;
  };
  std::vector<Schedule> schedules;  // of which it has heard
  KnownSlots slots;
};

class RandomMessages {
 public:
  // `calm`: little that is wrong, so that generations live long enough to plan a lot.
  RandomMessages(Random& random, bool calm) : random_(random), calm_(calm) {}

  v1::WorkerMessage Join();
  // What it says of one of its schedules, most of the time when it is due.
  v1::WorkerMessage OfSchedule(KnownWorker& sender);
  // Of a member, and about anything but tensors.
  v1::WorkerMessage Body();
  // Tensors that `sender` has; and in sets that it may not be in.
  v1::WorkerMessage Ready(KnownWorker& sender);
  // Tensor `number` of set `set`: the same on all ranks, most of the time.
  v1::WorkerMessage ReadyOne(uint64_t number, int32_t set, KnownWorker& sender);
  v1::WorkerMessage JoinTensor();
  v1::WorkerMessage SetRequest(const KnownWorker& sender);
  // For a set that its members make, or end, alone; `number`: the same on all ranks.
  v1::WorkerMessage NamedSetRequest(uint64_t number, KnownWorker& sender);
  // Of an operator, a launcher or a store's client; `call`: its number.
  Inbound Call(CallId call);
  // Most often the set of all; sometimes one that is not there.
  int32_t SomeSet() { return Below(3) > 0 ? 0 : static_cast<int32_t>(1 + Below(3)); }

 private:
  uint64_t Below(uint64_t bound) { return random_.Below(bound); }
  v1::WorkerMessage RareBody();
  TensorSpec SpecOf(uint64_t number, const KnownWorker& sender);
  void Add(const TensorSpec& spec, KnownWorker& sender, v1::TensorsReady& ready);
  Inbound StoreRequest(CallId call);
  DismissCall Dismissal(CallId call);

  Random& random_;
  const bool calm_;
};

}  // namespace coordd
