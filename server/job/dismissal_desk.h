// Whoever is to go: to be asked, to leave by itself at a point where all ranks agree on the change
// of members, and to be evicted if it has not in time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/job/dismissals.h"
#include "server/job/drains.h"
#include "server/job/job_messages.h"
#include "server/job/job_workers.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"
#include "server/model/durability.h"
#include "server/model/effects.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// What the desk has to know of its job at the moment.
struct JobOutlook {
  bool ended = false;
  bool returning = false;            // its members come back
  std::optional<int32_t> size = {};  // of its generation; absent: there is none
  Generation generation = {};        // the last that formed
  std::string not_stored = {};       // why it could not form one; empty: nothing failed
};

// PURE; `now` must not decrease. Not thread-safe: one owner.
//
// Who is asked to leave is stored before it hears of it, and nobody is answered before that;
// whoever is gone is not asked.
class DismissalDesk {
 public:
  // Makes a worker go, and closes its session with this status. May call the desk again.
  using Dismiss = absl::FunctionRef<void(SessionId session, v1::DepartureCause cause,
                                         const std::string& detail, const absl::Status& close)>;

  // All outlive it.
  DismissalDesk(const ServerOptions& options, const Durability& durability,
                const JobMessages& messages, const JobWorkers& workers, const Reforming& reforming,
                const RendezvousState& rendezvous)
      : options_(options),
        durability_(durability),
        messages_(messages),
        workers_(workers),
        reforming_(reforming),
        rendezvous_(rendezvous) {}
  DismissalDesk(const DismissalDesk&) = delete;
  DismissalDesk& operator=(const DismissalDesk&) = delete;

  Drains& drains() { return drains_; }
  const Drains& drains() const { return drains_; }
  void Restore(const v1::DrainRecord& record) {
    dismissals_.Restore(!record.drains().empty() || !record.nodes().empty());
  }

  // Answered with a DismissAnswer, when it is stored; the statuses of Admin.Dismiss.
  void OnCall(const DismissCall& call, const JobOutlook& job, Dismiss dismiss, const Turn& turn);
  void OnStored(CallId call, const absl::Status& status, bool returning, Dismiss dismiss,
                const Turn& turn);
  // Its process knows that it has to end.
  void OnRequest(SessionId session, const v1::DrainRequest& request, Dismiss dismiss,
                 const Turn& turn);
  // Those who have come back to a coordd that was started again.
  void TellReturned(Dismiss dismiss, const Turn& turn);
  // Whoever has not left in time is evicted.
  void Watch(Dismiss dismiss, const Turn& turn);
  // A generation was announced without those who are gone.
  void NoteFormed(Effects& effects);
  // The job is over; whoever waits for an answer hears that.
  void Fail(Effects& effects);
  // Whether something of it is stored that has to go with the job.
  bool TakeStored() { return dismissals_.TakeStored(); }

  // How the worker goes that says that it was drained; absent: nobody had asked it, nor it itself.
  std::optional<std::string> DrainedText(const std::string& worker_id, bool says_so) const;
  // Until when those who have agreed on a change of members wait for one of them to say goodbye;
  // InfinitePast: they wait for nobody.
  absl::Time NextLeaving() const;

 private:
  absl::StatusOr<std::vector<SessionId>> Meant(const v1::DismissRequest& request,
                                               const JobOutlook& job) const;
  absl::Status NobodyMeant(const v1::DismissRequest& request, const JobOutlook& job) const;
  absl::Status MayGo(const v1::DismissRequest& request, const std::vector<SessionId>& meant) const;
  absl::Status MayGoUnforced(const v1::DismissRequest& request, const std::vector<SessionId>& meant,
                             bool follows, const std::string& end) const;
  void Lift(SessionId session, absl::string_view by, Effects& effects);
  bool Persist(CallId call, Effects& effects);
  // REQUIRES: it has been asked.
  void Begin(SessionId session, Dismiss dismiss, const Turn& turn);

  const ServerOptions& options_;
  const Durability& durability_;
  const JobMessages& messages_;
  const JobWorkers& workers_;
  const Reforming& reforming_;
  const RendezvousState& rendezvous_;
  Drains drains_;
  Dismissals dismissals_;
};

}  // namespace coordd
