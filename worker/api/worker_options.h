// Everything that can be set about a worker, with its default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/environment.h"
#include "common/base/log.h"
#include "common/grpc/tls.h"
#include "common/launch/launcher_detect.h"
#include "common/net/address.h"
#include "common/protocol/types.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/base/stack_probe.h"
#include "worker/gpu/nccl/device_claim.h"

namespace coordd {

// kAuto: inside a node collectives on memory that all its ranks have mapped, or where they cannot
// messages in shared memory; between nodes UCX over RDMA, or TCP of coordd's own. kMapped: the
// same, but that they cannot is an error. kTcp: as kAuto, without UCX. kShm: messages in shared
// memory, all ranks on one node. kUcx: as kAuto, but UCX between nodes. All ranks of a job choose
// alike.
enum class TransportChoice { kAuto, kMapped, kShm, kTcp, kUcx };

struct WorkerOptions {
  HostPort coordinator;                        // COORDD_ADDR, the first one
  std::vector<HostPort> further_coordinators;  // … and those that stand by, or may take over
  bool auto_coordinator = false;               // COORDD_ADDR absent or "auto": found or started
  std::string job = "default";  // COORDD_JOB_ID, else the launcher's name for this start
  std::string token;            // contents of COORDD_TOKEN_FILE; empty: none
  TlsFiles tls;                 // COORDD_TLS_CERT, COORDD_TLS_KEY, COORDD_TLS_CA
  std::string worker_id;        // empty: hostname-pid-random
  // COORDD_LAUNCH_ID: what whoever has started this process calls it, and reports its end under.
  std::string launch_id;
  // COORDD_MIN_WORKERS, COORDD_MAX_WORKERS; else COORDD_SIZE, else the launcher's size; 0: coordd's
  // default.
  int32_t min_workers = 0;
  int32_t max_workers = 0;
  // COORDD_SETTLING_WINDOW: how long the first generation waits for more than min_workers after the
  // last has come; absent: coordd's default.
  std::optional<absl::Duration> settling_window;
  LaunchPlace launch;                // of COORDD_LAUNCHER, else as detected
  int32_t launcher_rank = -1;        // COORDD_RANK, else launch.rank
  int32_t launcher_local_rank = -1;  // COORDD_LOCAL_RANK, else launch.local_rank
  // COORDD_NODE_SESSION: unix:/PATH of this node's relay, through which the session goes while it
  // is there. Not where coordd has several addresses.
  std::string node_session;
  std::string node_id;                // COORDD_NODE_ID: replaces what is found out
  std::vector<std::string> topology;  // COORDD_TOPOLOGY: "aisle3/rack12"
  // COORDD_METRICS: where to serve /metrics; absent: off; host "" (written "auto"): at the address
  // that coordd sees; port 0 picks one.
  std::optional<HostPort> metrics;
  std::optional<PortRange> ports;  // COORDD_PORT_RANGE: what port 0 and the transport pick from
  LogLevel log_level = LogLevel::kInfo;  // COORDD_LOG_LEVEL: of the process, from its last worker
  // COORDD_TRANSPORT: auto, mapped, shm, tcp, ucx
  TransportChoice transport = TransportChoice::kAuto;
  // COORDD_DATA_ENCRYPTION=on: what goes over coordd's own TCP between nodes. Equal on all members.
  bool encrypt_data = false;
  // COORDD_TCP_CONNECTIONS: of coordd's own TCP, between each two ranks of different nodes, 1
  // to 16. Equal on all members.
  int32_t tcp_connections = 1;
  // COORDD_HOST_ALGORITHM: auto, flat, hierarchical; of allreduces on host memory between nodes. If
  // members differ, flat goes before hierarchical, and that before auto, on all of them.
  HostAlgorithm host_algorithm = HostAlgorithm::kAuto;
  Environment
      ucx_environment;  // UCX_* variables, the user's wishes, which go first; COORDD_UCX_LIBRARY
  // COORDD_NCCL_LIBRARY, COORDD_NCCL_CONFIG (NcclWishes), and those of NCCL's that say what it may
  // travel over; NVTX_INJECTION64_PATH.
  Environment nccl_environment;
  // COORDD_ALLOW_SHARED_GPU=1, COORDD_REQUIRE_RDMA=1: what ranks accept of each other's GPUs.
  // COORDD_GPU_ALGORITHM: auto, flat, hierarchical; equal on all members.
  DeviceRules device_rules;
  // COORDD_GPU_REGISTER: what NCCL is told of fusion buffers on GPUs. 0: nothing. 1: each rank's
  // own (ncclCommRegister). symmetric: those of all ranks, as windows of each other, where all want
  // that; and of the program's memory as RegisterDeviceMemory says.
  bool register_gpu_buffers = true;
  bool symmetric_gpu_windows = false;
  // COORDD_GPU_SHRINK=0: this rank keeps no communicator from which the next generation's could be
  // made (ncclCommShrink), and so nobody's is.
  bool shrink_gpu_communicators = true;
  // COORDD_GPU_DIRECT=0: NCCL launches what this rank, and so all ranks, call on threads of its
  // own.
  bool direct_gpu_communicators = true;
  // COORDD_GPU_GATE_LIMIT seconds: a stream of a GPU that is held since the generation has ended
  // ends its process's context when the program has not called the library for that long.
  absl::Duration gpu_gate_limit = absl::Seconds(60);
  // HOME, PATH, XDG_RUNTIME_DIR, COORDD_RENDEZVOUS_FILE: where a coordinator that nobody has named
  // is looked for, and started from.
  Environment places;

  absl::Duration join_timeout =
      absl::Minutes(5);  // COORDD_JOIN_TIMEOUT seconds: from Start to the first membership
  // COORDD_RESUME_TIMEOUT seconds: without coordd, before everything fails.
  absl::Duration resume_timeout = absl::Minutes(5);
  absl::Duration connect_timeout = absl::Seconds(60);  // data plane of a generation
  absl::Duration collective_timeout =
      absl::Minutes(10);  // COORDD_TIMEOUT seconds: every submitted tensor ends by then
  // COORDD_CHECK_RESULTS: every result of the host's data plane is compared with a reference, sums
  // and products within this tolerance (checking_backend.h). Equal on all members.
  std::optional<double> check_results;
  // COORDD_ON_FAILURE: end, raise, continue; what the job does when a member is lost. Equal on all
  // members.
  OnFailure on_failure = OnFailure::kEnd;
  int64_t fusion_buffer_bytes = int64_t{128} << 20;

  StackSource stack;  // of the program, for the report of a stall

  // COORDD_TIMELINE: written from the start (Worker::StartTimeline); empty: none.
  // COORDD_TIMELINE_MARK_CYCLES=1.
  std::string timeline;
  bool timeline_mark_steps = false;

  // INVALID_ARGUMENT: names the option, what was given and what is expected.
  absl::Status Validate() const;
};

}  // namespace coordd
