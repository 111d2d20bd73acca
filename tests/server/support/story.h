// The interpreter of tests/scripts/*.txt: a coordinator's state, driven by commands that read like
// a story, each answered with everything that coordd would send and note.
//
// One command a line:
// clang-format off
//   join NAME [job= token= id= node= labels=x/y lrank= lslot= min= max= settle= protocol= gpu= nccl=
//              resume=1 schedules=1 on_failure= launch=]       a worker's stream begins with Join
//   ready NAME TENSOR[4,2]... [kind= dtype= op= root= peer= group= size= set= gen=]
//   withdraw NAME TENSOR [reason= set=]
//   failed NAME tensor= [suspect= silent=1 detail=]
//   addset NAME 0,2 [request= withdrawn=1]       asks for a process set
//   removeset NAME 1 [request= withdrawn=1]      asks for its end
//   report NAME [gen=]                           what it executed of a generation that is over has ended
//   change NAME [gen=]                           the members may change now
//   ack NAME [id=]                               about schedules, as the next two
//   break NAME [id= reason=]
//   frozen NAME [id=] launched=
//   evict|drain|lift WHO [job= by= grace=30s force=1]      an operator: WHO is a rank or a node
//   asks NAME [grace= reason=]                   its process knows that it has to end
//   exit LAUNCH [signal= code= words= reason= token= job=]      a launcher tells how it has ended
//   beat NAME [lane= launched= completed= waiting= xid=] [comm= call= waits= missing= of=]
//   leave NAME [reason= drained=1 failure=]
//   lost NAME [detail=]
//   set KEY VALUE [job= token=]
//   get CALL KEY [job= token=]
//   add KEY N [job= token=]
//   delete PREFIX [job= token=]
//   cancel CALL
//   silent NAME       from now on it sends no heartbeats; all others do, every two seconds of `tick`
//   tick 10s          time passes
//   sleep 10s         coordd itself does not run
//   options lease=… stall_warning=… stall_abort=… max_workers=… max_jobs=… max_pending=…      (first)
//   status [JOB]
//   stop [reason=]
// clang-format on
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/job/coordinator_state.h"
#include "tests/server/support/effects_text.h"
#include "tests/server/support/invariants.h"
#include "tests/server/support/story_command.h"

namespace coordd {

class Story {
 public:
  Story();
  // The lines that the command leads to. A command that is not understood is a line that says so.
  std::vector<std::string> Run(const std::string& command);

 private:
  using Command = StoryCommand;
  struct Session {
    SessionId id;
    Generation generation;
    int64_t requests = 0;  // for process sets
    bool beats = true;
    bool open = true;
  };
  void SetOptions(const Command& command);
  bool Worker(const Command& command);   // whether it knows the verb
  bool Leaving(const Command& command);  // its part
  bool StoreOrTime(const Command& command);
  void Exit(const Command& command);
  void Dismiss(const Command& command);
  void Join(const Command& command);
  void Ready(const Command& command);
  void Schedule(const Command& command);
  void RequestSet(const Command& command);
  void Call(const Command& command);
  void Status(const Command& command);
  void Beat(Session& session);
  void Pass(absl::Duration duration);
  v1::WorkerMessage From(const Command& command);
  Session& SessionOf(const Command& command);
  void Step(const Inbound& in);
  void Turn();  // what the coordinator thread does after each batch of inputs
  void Take(Effects effects);

  ServerOptions options_;
  std::unique_ptr<CoordinatorState> state_;
  HistoryChecker history_;
  absl::Time start_;
  absl::Time now_;
  absl::Time next_beat_;
  bool quiet_ = false;      // heartbeats of `tick` are not worth a line
  bool show_time_ = false;  // within `tick`
  std::map<std::string, Session> sessions_;
  std::map<std::string, CallId> calls_;
  int64_t last_id_ = 0;
  std::vector<std::string> lines_;
};

}  // namespace coordd
