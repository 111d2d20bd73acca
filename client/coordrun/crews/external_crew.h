// Workers that somebody else starts: coordrun prints how, and follows them in coordd's state. (io)
#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/coordrun/crews/crew.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/plan/worker_environment.h"
#include "common/base/environment.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

// What to start on each host, by hand or by another launcher. Values in, text out.
std::string ExternalInstructions(const RunOptions& options, int32_t np,
                                 const Environment& variables);

// Ends a worker for each member that has departed, as the end of the job tells. Signals do not
// reach the workers; SIGKILL gives them up.
class ExternalCrew : public Crew {
 public:
  ExternalCrew(const RunOptions& options, const RunPlan& plan, Rendezvous rendezvous,
               Environment variables);

  absl::Status Start(CrewEvents& events) override;
  void Await(std::vector<pollfd>& /*fds*/) override {}
  void Handle(absl::Span<const pollfd> fds, absl::Time now, CrewEvents& events) override;
  absl::Time NextDeadline() const override { return next_look_; }
  void Signal(int signal, absl::Time now) override;
  bool drained() const override { return true; }
  void KillAll() override {}

 private:
  void Take(const v1::JobState& job, CrewEvents& events);
  void EndAll(const ProcessEnd& end, CrewEvents& events);

  // Constant after construction.
  const RunOptions& options_;
  const RunPlan& plan_;
  const Rendezvous rendezvous_;
  const Environment variables_;

  absl::Time next_look_ = absl::InfinitePast();
  bool seen_ = false;  // members
  bool given_up_ = false, ended_ = false;
};

}  // namespace coordd
