// What a job consists of, without the JobState that composes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/current_generation.h"
#include "server/job/drains.h"
#include "server/job/job_history.h"
#include "server/job/job_messages.h"
#include "server/job/job_view.h"
#include "server/job/job_workers.h"
#include "server/job/kv_state.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"
#include "server/job/resume_state.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"

namespace coordd {

struct JobParts {
  void Begin(int32_t min_workers, int32_t max_workers, OnFailure on_failure = OnFailure::kEnd) {
    RendezvousOptions limits;
    limits.min_workers = min_workers;
    limits.max_workers = max_workers;
    limits.settling_window = absl::ZeroDuration();
    rendezvous = RendezvousState(limits, rendezvous.proposed(), kStart);
    reforming = Reforming({.on_failure = on_failure});
    started = true;
  }
  JobWorker& Wait(SessionId session, const std::string& worker_id) {
    JobWorker worker;
    worker.join = JoinOf(worker_id);
    worker.join.clear_token();
    worker.join.set_drains(true);
    rendezvous.Join(session, kStart).IgnoreError();
    return workers.Add(session, std::move(worker));
  }
  // A generation of these, as ranks in this order.
  void Form(const std::vector<SessionId>& by_rank) {
    for (SessionId session : by_rank) {
      if (!workers.contains(session)) Wait(session, absl::StrCat("w", ToInt(session)));
    }
    rendezvous.TryForm(kStart);
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      const Place place{.rank = Rank{static_cast<int32_t>(rank)},
                        .size = static_cast<int32_t>(by_rank.size())};
      workers.at(by_rank[rank]).Enter(rendezvous.generation(), place, kStart);
    }
    generation.emplace(GenerationIdentity{"train", Epoch{1}, rendezvous.generation()}, options,
                       by_rank, /*knows_sets=*/true);
  }
  JobView View() const {
    return {.name = messages.name(),
            .options = options,
            .started = started,
            .rendezvous = rendezvous,
            .reforming = reforming,
            .workers = workers,
            .generation = generation.has_value() ? &*generation : nullptr,
            .resume = resume.has_value() ? &*resume : nullptr,
            .kv = kv,
            .drains = drains,
            .history = history};
  }

  ServerOptions options;
  Durability durability{.on = true, .cluster_id = "cluster", .outlives = true};
  bool started = false;
  RendezvousState rendezvous{RendezvousOptions{}, Generation{0}, kStart};
  Reforming reforming;
  JobWorkers workers;
  KvState kv{"train", KvBounds{}};
  Drains drains;
  JobHistory history;
  std::optional<CurrentGeneration> generation;
  std::optional<ResumeState> resume;
  JobMessages messages{"train", options, durability, Epoch{1}, rendezvous};
};

}  // namespace coordd
