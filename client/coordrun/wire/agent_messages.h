// What coordrun and its agents on other hosts say to each other, as lines of JSON. Orders travel to
// an agent's stdin and nowhere else: they hold the job's secrets. PURE
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/plan/run_state.h"
#include "client/coordrun/plan/torch_variables.h"
#include "common/base/environment.h"

namespace coordd {

// Of these messages and of what workers say (PieceText). An agent of another revision is refused by
// name.
inline constexpr int kAgentProtocol = 4;
// A line of orders: the environment of a shell has 2 MiB at most.
inline constexpr size_t kMaxOrderBytes = size_t{8} << 20;

// How an agent knows which workers are its own.
enum class AgentIdentity {
  kListed,  // all of AgentOrders::workers
  kSlurm,   // the one that its Slurm task stands for
};

struct OrderedWorker {
  int32_t index = 0;
  Environment environment;  // of this one, over that of all
};

// A file that the agent writes into a directory of its own, for its user only, and names to the
// workers.
struct OrderedFile {
  std::string variable;  // COORDD_TOKEN_FILE
  std::string name;      // token
  std::string contents;
};

// The first line that an agent gets. It then looks at its host, and answers with its report.
struct AgentOrders {
  int protocol = kAgentProtocol;
  AgentIdentity identity = AgentIdentity::kListed;
  int32_t number = 0;  // the agent's own, with kListed
  std::vector<std::string> command;
  std::string directory;           // where the workers start; must be there
  Environment environment;         // of every worker, over the agent's own
  std::vector<std::string> unset;  // variables that they must not have
  std::vector<OrderedFile> files;
  std::vector<OrderedWorker> workers;
  // host:port of coordd, as other machines may reach it: the first that answers is taken.
  std::vector<std::string> coordinators;
  std::string marker;  // a file that coordrun has put into `directory`; empty: none
  bool look = true;    // whether to report what only the preflight asks for
  // Workers may be started again: the agent stays, also without any, until it is told to finish.
  bool stay = false;
  bool relay = false;              // its workers speak to coordd through one
  std::vector<std::string> torch;  // TorchNames
  std::string port_range;          // for MASTER_PORT; empty: any
};

// The next line lets the workers start; further ones pass a signal on, or start one again that has
// ended. An agent that stays ends with its workers after the last one.
inline constexpr char kStartOrder[] = "start";
inline constexpr char kFinishOrder[] = "finish";
std::string SignalOrder(int signal);                     // "signal 15"
std::string RestartOrder(int32_t worker);                // "restart 3"
std::string SignalOneOrder(int32_t worker, int signal);  // "signal 15 3"
// The agent of that number is to pick another MASTER_PORT and to tell it.
std::string PortOrder(int32_t agent);  // "port 0"
// What workers that are started from now on find in their environment: which rank they are, and
// where rank 0's store is. kMasterAtCoordinator: at the address at which the agent has reached
// coordd.
inline constexpr char kMasterAtCoordinator[] = "@";
std::string PlaceOrder(int32_t worker, const TorchPlace& place);  // "place 3 3 4 1 2 1"
std::string MasterOrder(const TorchMaster& master);               // "master 10.0.0.1 29500"

// What an agent finds on its host.
struct AgentReport {
  int protocol = kAgentProtocol;
  int32_t number = 0;
  std::string version;  // of coordd
  std::string host;
  std::string problem;      // why it cannot start its workers, one sentence; empty: it can
  std::string coordinator;  // of AgentOrders::coordinators, the one taken
  int32_t workers = 1;
  int32_t local_size = 1;         // ranks of this run on the host
  double unix_seconds = 0;        // its clock
  int32_t cores = 0;              // that it may use
  std::string cpus;               // which ones: "0-3,8"
  std::vector<std::string> gpus;  // models of those in the machine
  int32_t visible_gpus = 0;       // to each worker: CUDA_VISIBLE_DEVICES, else all
  std::string nccl, ucx;          // versions; empty: absent
  bool marker_seen = true;
  // For torch's variables.
  std::string node;         // HostIdentity::node_id of its workers
  std::string labels;       // COORDD_TOPOLOGY of its workers
  std::string address;      // its own, as whoever reaches coordd reaches it; empty: not known
  int32_t master_port = 0;  // that it keeps free; 0: none
  int32_t first_local = 0;  // local rank of its first worker
};

struct WorkerStartedMessage {
  int32_t worker = 0;
  pid_t pid = 0;
  std::string launch = "";  // its COORDD_LAUNCH_ID
};
struct WorkerEndedMessage {
  int32_t worker = 0;
  ProcessEnd end;
};
// The command cannot be run: 127 not found, 126 otherwise.
struct CannotRunMessage {
  int status = 126;
  std::string reason;
  int32_t worker = -1;  // that was to be started again; -1: all
};

// The answer to a PortOrder.
struct PortMessage {
  uint16_t port = 0;
};

using AgentMessage = std::variant<AgentReport, WorkerStartedMessage, WorkerEndedMessage,
                                  CannotRunMessage, PortMessage>;

// One line without its end. Bytes that are not UTF-8 (which JSON cannot hold) are kept as Latin-1
// would have them.
std::string OrdersLine(const AgentOrders& orders);
std::string MessageLine(const AgentMessage& message);

// INVALID_ARGUMENT: says what is wrong; FAILED_PRECONDITION: another revision.
absl::StatusOr<AgentOrders> ParseOrders(absl::string_view line);
absl::StatusOr<AgentMessage> ParseMessage(absl::string_view text);
// The signal of a SignalOrder or a SignalOneOrder; 0: it is none. `worker`: of the latter; -1: all.
int ParseSignalOrder(absl::string_view line, int32_t* worker);
// The worker of a RestartOrder; -1: it is none.
int32_t ParseRestartOrder(absl::string_view line);
// The agent of a PortOrder; -1: it is none.
int32_t ParsePortOrder(absl::string_view line);
// Whether it is such an order.
bool ParsePlaceOrder(absl::string_view line, int32_t* worker, TorchPlace* place);
bool ParseMasterOrder(absl::string_view line, TorchMaster* master);

}  // namespace coordd
