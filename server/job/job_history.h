// What a job has done before, as far as it is remembered.
#pragma once

#include <deque>

#include "coordd/v1/session.pb.h"
#include "server/job/executed_counts.h"

namespace coordd {

struct JobHistory {
  std::deque<v1::Departure> departures;  // newest last; bounded (AddDeparture)
  ExecutedCounts executed;

  // Another run has the job's name now.
  void Forget() {
    departures.clear();
    executed.ForgetBefore();
  }
};

}  // namespace coordd
