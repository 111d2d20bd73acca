// Everything that can be said to coordrun, with its default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/grpc/tls.h"
#include "common/launch/ddl_topology.h"

namespace coordd {

struct RunOptions {
  int32_t np = 1;  // workers to start; -H and an allocation tell it, too
  bool np_given = false;
  int32_t min_np = 0;  // the run goes on without those that fail as long as so many do not; 0: np
  int32_t max_restarts = 0;          // of workers that have failed, in all; with min_np
  std::string on_failure = "raise";  // COORDD_ON_FAILURE of the workers; with min_np
  // Hosts that come and go: a command of the shell that prints those that are there.
  std::string discovery_script;
  int32_t max_np = 0;          // workers at a time; 0: as many as there are slots
  int32_t slots_per_host = 1;  // of a host for which it prints none
  int32_t reset_limit = 0;     // changes of members after which a loss is the end; 0: none
  // For min_np workers to be there, at the start and after a loss.
  absl::Duration elastic_timeout = absl::Minutes(10);
  // A slot whose worker has failed is used again after the first, then twice as long each time.
  absl::Duration cooldown_min = absl::Seconds(1), cooldown_max = absl::Minutes(1);
  int32_t size = 0;        // workers of the job in all; 0: np
  int32_t first_rank = 0;  // COORDD_RANK of the first one here
  // This run takes part in the job of several pods (TakePart).
  struct Pods {
    std::string address;      // of their coordd, which may not be there yet; empty: it does not
    int32_t min_workers = 0;  // --min-np, which is about all pods; 0: the job is not elastic
    bool take_part() const { return !address.empty(); }
  } pods;
  std::vector<std::string> command;  // program and arguments
  bool horovod = false;              // it is a Horovod script: see horovod_flag.h
  bool torch_backend = false;        // its torch.distributed is to use coordd: the same

  std::string launcher;         // a name of LauncherKind; empty: found out
  std::string hosts, hostfile;  // -H h1:4,h2:4, or the path of a file
  // ddlrun's flags: how many workers a host has, and the racks and aisles of the hosts.
  struct Ddl {
    std::string mode;               // "p:6x2x1x1"
    std::string source = "--mode";  // who says it: the flag, or DDL_OPTIONS
    bool from_variable = false;
    bool names_hosts = false;  // RunOptions::hosts are those of DDL_HOST_LIST
    DdlShape shape = {};       // --accelerators, --nodes, --racks, --aisles
    bool asked() const { return !mode.empty() || shape.said(); }
  } ddl;
  std::vector<std::string> launcher_arguments;  // more for ssh, srun or mpirun
  int32_t ssh_port = 0;                         // 0: ssh's own choice
  std::string ssh_identity;                     // a private key's file
  std::string remote_coordrun;  // its path on other hosts; empty: the same as here, else PATH
  std::string directory;        // where workers start; empty: here
  std::string run_directory;  // where the folder of this run's secrets is made; empty: a local one
  std::string networks;       // interfaces of this machine, "eth0,ib0"; empty: all
  std::string port_range;     // "20000-20100", for the coordd that is started, and for workers
  absl::Duration start_timeout = absl::Seconds(30);  // for the hosts to answer
  std::string node_sessions = "auto";                // relays: on, off, or where they are of use
  bool checks = true;                                // the preflight
  bool check_only = false;
  bool dry_run = false;
  bool verbose = false;

  std::string coordinator;           // host:port of a coordd that runs; empty: start one
  TlsFiles coordinator_tls;          // to it; empty: COORDD_TLS_CA, COORDD_TLS_CERT, COORDD_TLS_KEY
  std::string job;                   // empty: COORDD_JOB_ID with --coordinator, else ProgramName
  std::string listen;                // of the coordd that is started; empty: see ListenAddress
  std::string http = "127.0.0.1:0";  // its status page; "off"
  bool insecure_http = false;        // may be beyond loopback without TLS
  std::string http_token_file;       // who has it may ask it beyond loopback; empty: none
  std::vector<std::string> coordd_arguments;
  bool tls = true;    // for the coordd that is started
  bool keep = false;  // it stays up when the workers have ended

  std::string token_file;  // of the job; empty: one is made, or COORDD_TOKEN_FILE
  std::string metrics;     // of each worker; "off"; empty: loopback, for local ones
  // -x: variables for the workers. Without a value: the one that coordrun itself has.
  std::vector<std::pair<std::string, std::optional<std::string>>> variables;

  bool torch_env = true;  // RANK, WORLD_SIZE, MASTER_ADDR and the like for the workers

  bool prefix = true;              // "[n] " before each line
  std::string output_directory;    // rank-N.out and rank-N.err, besides; empty: none
  bool output_as_horovod = false;  // DIR/rank.N/stdout and stderr instead
  bool json = false;
  std::vector<std::string> notes;  // sentences about these options, for the user

  absl::Duration timeout = absl::InfiniteDuration();  // of the whole run
  // After the first failure the other workers have `linger` to notice and to say so, then `grace`
  // from SIGTERM to SIGKILL.
  absl::Duration linger = absl::Seconds(2);
  absl::Duration grace = absl::Seconds(5);
  // Workers of hosts that are gone have so long to leave at a commit, before SIGTERM.
  absl::Duration drain_grace = absl::Seconds(60);
  // Of one of several pods that was asked to end, whose workers have left in order.
  int drained_status = 0;

  // Whether the coordd that is started serves its pages over TLS, to who has a certificate or a
  // token.
  bool HttpHasTls() const;
  // INVALID_ARGUMENT: names the option, what was given and what is expected. How many workers there
  // are, and where, is PlanRun's part.
  absl::Status Validate() const;
};

// A program's file name with what a job's name may not have replaced: "train.py", "job". Names in
// other alphabets differ by a hash: "--------1c4f03be".
std::string JobNameFrom(const std::string& program);

// What coordd takes for the name of a job. INVALID_ARGUMENT: begins with `source`, as "--job".
absl::Status CheckJobName(absl::string_view source, const std::string& job);

// The value that --coordd-arg gives coordd's option `name`, such as "--store": it wins over
// coordrun's own. Nothing: it gives none.
std::optional<std::string> CoorddArgument(const RunOptions& options, absl::string_view name);

// "NAME=VALUE" or "NAME". INVALID_ARGUMENT.
absl::Status ParseVariable(const std::string& text, RunOptions* options);

}  // namespace coordd
