#include "worker/api/environment_table.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"

namespace coordd {
namespace {

constexpr absl::string_view kMeeting = "How workers find coordd, and each other";
constexpr absl::string_view kSecrets = "Token and certificates";
constexpr absl::string_view kPlace = "Who a worker is";
constexpr absl::string_view kFailure = "Time and failure";
constexpr absl::string_view kHost = "Collectives on host memory";
constexpr absl::string_view kGpu = "Collectives on GPU memory";
constexpr absl::string_view kWatching = "What can be watched";
constexpr absl::string_view kPython = "The Python package";
constexpr absl::string_view kService = "The systemd unit";

constexpr absl::string_view kUnset = "not set";

// long: it is a table, from which docs/reference and check-build are made
constexpr VariableRow kRows[] = {
    {"COORDD_ADDR", kMeeting, "Where coordd listens",
     "`HOST:PORT`, several of them with commas between, or `auto`", "`auto`",
     "workers, coordctl, coordd-relay, coordrun, Python",
     "With `auto` the workers use a coordd that rank 0 starts. Several addresses are those of "
     "coordds that stand by for each other. coordrun sets the variable for its workers; given to "
     "coordrun itself it is not used, and coordrun says so."},
    {"COORDD_JOB_ID", kMeeting, "Name of the job", "letters, digits, `.`, `_` and `-`",
     "the launcher's name for this start, else `default`", "workers, coordrun, Python",
     "coordrun reads it only together with `--coordinator`."},
    {"COORDD_RENDEZVOUS_FILE", kMeeting,
     "File through which the ranks find the coordd that rank 0 starts",
     "a path in a directory that all nodes see", "a file that is named after this start", "workers",
     "It counts where `COORDD_ADDR` is `auto`."},
    {"COORDD_NODE_SESSION", kMeeting,
     "This node's coordd-relay, through which the worker speaks to coordd", "`unix:/PATH`", kUnset,
     "workers, Python",
     "The worker goes straight to coordd while the relay is not there. `coordrun --node-sessions` "
     "sets the variable."},
    {"COORDD_PORT_RANGE", kMeeting, "Ports to listen on", "`A-B`", "any free port",
     "workers, coordd, coordd-relay, Python",
     "It is meant for firewalls. A node needs one port for coordd, if coordd runs there, and two "
     "for each worker."},

    {"COORDD_TOKEN_FILE", kSecrets, "File with the job's token", "a path", "no token",
     "workers, coordctl, coordrun, Python",
     "Nobody but the file's owner may be able to read it. coordrun makes a token for each run "
     "unless it is given one."},
    {"COORDD_TLS_CA", kSecrets, "Certificate authority of coordd", "path of a PEM file", "no TLS",
     "workers, coordctl, coordrun, coordd-relay, Python",
     "`COORDD_TLS_CA`, `COORDD_TLS_CERT` and `COORDD_TLS_KEY` are given all together or not at "
     "all."},
    {"COORDD_TLS_CERT", kSecrets, "This worker's certificate", "path of a PEM file", "no TLS",
     "workers, coordctl, coordrun, coordd-relay, Python", ""},
    {"COORDD_TLS_KEY", kSecrets, "Private key of that certificate", "path of a PEM file", "no TLS",
     "workers, coordctl, coordrun, coordd-relay, Python", ""},

    {"COORDD_LAUNCHER", kPlace, "Launcher whose variables tell rank and size",
     "`slurm`, `openmpi`, ... as `coordctl whoami` names them, or `none`", "found out",
     "workers, coordctl, Python", "Variables of coordd's own win over the launcher's, one by one."},
    {"COORDD_RANK", kPlace, "The rank to have if coordd can arrange it",
     "a whole number of at least 0", "the launcher's", "workers, coordrun, Python",
     "It is a hint. The rank that counts is the one that coordd gives."},
    {"COORDD_SIZE", kPlace, "Workers of the job, the least and the most",
     "a whole number of at least 1", "the launcher's", "workers, coordrun, Python", ""},
    {"COORDD_LOCAL_RANK", kPlace, "The rank to have within the node",
     "a whole number of at least 0", "the launcher's", "workers, coordrun, Python",
     "It is a hint."},
    {"COORDD_LOCAL_SIZE", kPlace, "Workers on this node", "a whole number of at least 1",
     "the launcher's", "workers, coordrun, Python",
     "It is a hint. It is read where `COORDD_RANK` is set."},
    {"COORDD_NODE_RANK", kPlace, "Number of this node among those of the job",
     "a whole number of at least 0", kUnset, "workers, Python",
     "It is read where `COORDD_RANK` is set."},
    {"COORDD_MIN_WORKERS", kPlace, "The job starts with at least so many workers",
     "a whole number of at least 1", "that of `COORDD_SIZE`", "workers, Python",
     "`coordrun --min-np` sets it."},
    {"COORDD_MAX_WORKERS", kPlace, "The job takes at most so many workers",
     "a whole number of at least 1", "that of `COORDD_SIZE`", "workers, Python",
     "`coordrun --min-np` sets it, to what `--max-np` says."},
    {"COORDD_SETTLING_WINDOW", kPlace,
     "Time that the job's start waits for more workers after the last one",
     "a positive number of seconds", "that of coordd's `--settling-window`", "workers, Python",
     "It is equal on all workers. It begins once `COORDD_MIN_WORKERS` are there, and ends at once "
     "when `COORDD_MAX_WORKERS` are."},
    {"COORDD_NODE_ID", kPlace, "Name of this node, by which workers know that they share memory",
     "a text", "found out", "workers, coordrun, Python", ""},
    {"COORDD_TOPOLOGY", kPlace, "Where this node is, slowest network first",
     "labels with slashes between, such as `aisle3/rack12`", "what ddlrun says, else not set",
     "workers, coordrun, Python",
     "coordd gives neighbouring ranks to nodes whose labels begin alike. Allreduces and "
     "reducescatters between nodes go inside the racks first, then between them, allgathers "
     "between them first, so that a rack's uplink carries the vector as often as if one host sent "
     "it for all. `coordrun --racks` sets it; processes of ddlrun have it of `DDL_OPTIONS` and "
     "`DDL_HOST_LIST`."},
    {"COORDD_LAUNCH_ID", kPlace, "Name under which a launcher reports how this worker ends",
     "a text", kUnset, "workers, Python",
     "Launchers set it that will report that, as coordrun does."},
    {"COORDD_TORCH_ENV", kPlace, "Which of torchrun's variables coordrun has set for the worker",
     "names with commas between", kUnset, "Python",
     "coordrun sets it, so that `coordd.torch.init()` keeps these variables true when ranks "
     "change."},

    {"COORDD_JOIN_TIMEOUT", kFailure, "Time until the job must have started", "seconds", "`300`",
     "workers, coordrun, Python", "coordrun in a pod waits as long for coordd."},
    {"COORDD_TIMEOUT", kFailure, "Time that a collective may take", "seconds", "`600`", "workers",
     ""},
    {"COORDD_RESUME_TIMEOUT", kFailure, "Time without coordd before everything fails", "seconds",
     "`300`", "workers",
     "It begins when coordd is lost, and ends when it is back: started again on what it has "
     "stored, or another one that stood by. A coordd with `--store memory` cannot come back, and "
     "is "
     "not waited for: so it is with the coordd that `coordd.launch` and `coordd.torch.distributed` "
     "start by themselves. Nor is one that ends by SIGTERM, which tells its jobs that they are "
     "over."},
    {"COORDD_ON_FAILURE", kFailure, "What the loss of a worker does to the others",
     "`end`, `raise` or `continue`", "`end`", "workers, Python",
     "It is equal on all ranks. With `end` the job ends. With `raise` every call fails, and the "
     "others go on when their "
     "program asks for the next generation. With `continue` collectives go on among those who are "
     "left. coordrun sets it together with `--min-np`."},

    {"COORDD_TRANSPORT", kHost, "How tensors travel", "`auto`, `mapped`, `shm`, `tcp` or `ucx`",
     "`auto`", "workers",
     "With `auto` the ranks of a node work on memory that they map from each other, or by messages "
     "through shared memory where a rank cannot map it; between nodes there is TCP of coordd's "
     "own, whose connections begin with a proof that both ranks belong to the job, or RDMA by UCX "
     "where both ranks have it. `mapped` is the same, but a rank that cannot map is an error. "
     "`tcp` is as `auto`, without RDMA. `shm` is messages through shared memory, on one node. "
     "`ucx` is as `auto`, but UCX between nodes, which over TCP believes whoever reaches its "
     "ports. All ranks choose alike."},
    {"COORDD_DATA_ENCRYPTION", kHost, "Encryption between nodes", "`on` or `off`", "`off`",
     "workers",
     "With `on`, all that ranks send each other between nodes is encrypted, with AES-128-GCM and "
     "keys from a handshake of TLS 1.3, and `auto` does without RDMA; with `off`, who they are is "
     "proved so, and what follows goes in plain. What goes over UCX (`COORDD_TRANSPORT=ucx`) or "
     "NCCL is never encrypted. All ranks choose alike."},
    {"COORDD_TCP_CONNECTIONS", kHost, "Connections between two ranks", "1 to 16", "1", "workers",
     "How many connections of coordd's own TCP each two ranks of different nodes have. What is cut "
     "into several messages goes over all of them in turn: of collectives what is larger than "
     "256 KiB, of a broadcast between two nodes than 4 MiB. More than one helps where the network "
     "gives "
     "one connection only a part of a link, as clouds do for each flow, and as links do that are "
     "bonded, or paths that are chosen, by a connection's ports; elsewhere it helps nothing. All "
     "ranks choose alike."},
    {"COORDD_HOST_ALGORITHM", kHost, "Algorithm of collectives between nodes",
     "`auto`, `flat` or `hierarchical`", "`auto`", "workers",
     "`flat` treats all ranks alike. `hierarchical` works on mapped memory inside the nodes and "
     "sends slices between them. `auto` is hierarchical above 16 KiB for allreduces and "
     "broadcasts, above 4 KiB for reduces, and always for allgathers and reducescatters. "
     "Allgathers and reducescatters are hierarchical only where each node has as many ranks, two "
     "or more. If ranks differ, `flat` wins over `hierarchical` and `hierarchical` over `auto`."},
    {"COORDD_CHECK_RESULTS", kHost, "Compare every result with a reference, within this tolerance",
     "a part of what is reduced, more than 0 and at most 0.1, such as `1e-6`", "no check",
     "workers",
     "It is equal on all ranks. The first wrong result is an error that names rank, tensor and "
     "element. It is slow. "
     "`coordrun --check-results` sets it."},
    {"COORDD_UCX_LIBRARY", kHost, "UCX's libucp.so.0 to load", "a path",
     "the package's own, else the system's", "workers",
     "It is opened when ranks are on several nodes, and have RDMA or COORDD_TRANSPORT=ucx. "
     "Variables that begin with `UCX_` are the "
     "user's wishes, and go before what coordd would choose."},

    {"COORDD_GPU_ALGORITHM", kGpu, "Algorithm of allreduces on GPUs of several hosts",
     "`auto`, `flat` or `hierarchical`", "`auto`", "workers",
     "It is equal on all ranks. `flat` is NCCL alone. `hierarchical` is NCCL within the hosts and "
     "the host's data plane "
     "between them; each host then has as many ranks, two or more. `auto` is hierarchical where "
     "NCCL is kept from the RDMA that is there. `coordrun --gpu-algorithm` sets it."},
    {"COORDD_GPU_REGISTER", kGpu, "How coordd's buffers on GPUs are registered with NCCL",
     "`0`, `1` or `symmetric`", "`1`", "workers, Python",
     "With `0` on any rank they are not registered, nor is memory of programs "
     "(`coordrun --no-gpu-registration`). With `1` on all each rank registers its own. With "
     "`symmetric` they are windows of all ranks, where all ranks want that and NCCL is 2.27 or "
     "later; and so is memory of `coordd_alloc_device` of which all ranks register as much."},
    {"COORDD_GPU_DIRECT", kGpu, "Whether NCCL launches on the thread that calls it", "`0` or `1`",
     "`1`", "workers",
     "It holds for NCCL 2.23.4 and later, where all ranks say 1. With `0` NCCL makes a thread for "
     "each call, as it does for all non-blocking communicators, which costs some 100 "
     "microseconds."},
    {"COORDD_GPU_SHRINK", kGpu, "Whether NCCL's communicator is shrunk when members leave",
     "`0` or `1`", "`1`", "workers", "With `0` it is made anew."},
    {"COORDD_GPU_GATE_LIMIT", kGpu, "How long a stream is held when the generation has ended",
     "seconds, more than 0", "`60`", "workers",
     "A GPU's stream is held before it reads what an aborted collective has left, until the "
     "program has called coordd and got the error. A program that waits for its device and calls "
     "nothing is ended: after this time each of its calls of CUDA fails (a trap in coordd's "
     "kernel). Before NCCL 2.28.7 it may be up to twice this time, since the kernels that wait "
     "for the lost rank are ended only then."},
    {"COORDD_ALLOW_SHARED_GPU", kGpu, "Whether two ranks may use one GPU", "`0` or `1`", "`0`",
     "workers", "It is meant for tests."},
    {"COORDD_REQUIRE_RDMA", kGpu, "Whether NCCL between hosts without RDMA is an error",
     "`0` or `1`", "`0`", "workers", "`coordrun --require-rdma` sets it."},
    {"COORDD_NCCL_CONFIG", kGpu, "How coordd's communicators of NCCL are configured",
     "`NAME=VALUE`, with commas between several", "NCCL's own choice", "workers",
     "The names are those of NCCL's ncclConfig_t: `minCTAs` and `maxCTAs` (1 to 64), "
     "`cgaClusterSize` (0 to 8), `trafficClass` (0 to 255, NCCL 2.26 and later) and `netName`, for "
     "example `maxCTAs=16,netName=IB`. It holds for what coordd makes alone, where NCCL's own "
     "variables hold for all communicators of a process, torch's too. All ranks are given the "
     "same."},
    {"COORDD_NCCL_LIBRARY", kGpu, "NCCL's libnccl.so.2 to load", "a path", "the system's",
     "workers",
     "Where the process has loaded one already, torch's for instance, that one is used, and a "
     "warning says so."},

    {"COORDD_METRICS", kWatching, "Where the worker serves /metrics, and a relay those of its node",
     "`HOST:PORT`, `auto` or `auto:PORT`", "nowhere", "workers, coordd-relay",
     "Port 0 picks one. `auto` is the address from which the worker reaches coordd. coordrun sets "
     "it for workers on its own machine."},
    {"COORDD_TIMELINE", kWatching, "File into which a timeline is written", "a path", "no timeline",
     "workers, Python",
     "Rank 0 writes it. With `{rank}` in the path each rank writes one of its own."},
    {"COORDD_TIMELINE_MARK_CYCLES", kWatching, "Whether the timeline marks cycles", "`0` or `1`",
     "`0`", "workers", ""},
    {"COORDD_LOG_LEVEL", kWatching, "Least severe lines of the log",
     "`debug`, `info`, `warning` or `error`", "`info`", "workers", ""},

    {"COORDD_LIBRARY", kPython, "libcoordd.so.0 to load", "a path",
     "the wheel's own, that of the source tree's build/, or the system's", "Python", ""},
    {"COORDD_COORDRUN", kPython, "coordrun that `coordd.horovod.run` starts", "a path",
     "the one on `PATH`, else the package's own", "Python", ""},
    {"COORDD_DRAIN_GRACE", kPython, "Time from SIGTERM until a rank that has not left is evicted",
     "seconds", "30", "Python",
     "It is for programs under `coordd.torch.elastic.run`. With 0 SIGTERM ends the process at "
     "once."},
    {"COORDD_STACK_SIGNAL", kPython, "Signal that asks a rank for its stack in a stall",
     "a signal's number, or 0 for none", "that of SIGRTMAX-4", "Python",
     "A signal that the program handles itself is left alone."},

    {"COORDD_LISTEN", kService, "Where workers connect", "HOST:PORT", "0.0.0.0:29650",
     "deploy/systemd/coordd.service",
     "It is set in `/etc/coordd/coordd.env`, as the next two are."},
    {"COORDD_HTTP", kService, "Status page, metrics and health", "HOST:PORT, or off",
     "127.0.0.1:29651", "deploy/systemd/coordd.service", ""},
    {"COORDD_OPTIONS", kService, "More flags for coordd", "flags, as on a command line", "none",
     "deploy/systemd/coordd.service", "Without `--listen` and `--http`, which the unit gives."},
};

constexpr size_t kPageWidth = 120;

constexpr absl::string_view kBegin =
    R"(# Environment variables

<!-- Made by: coordd-worker --list-environment >docs/reference/environment.md. A test compares. -->

These are the variables of coordd's programs and of its Python package. A variable that is empty counts as one that is not set.
A flag wins over its variable. What is wrong in a variable is an error that names the variable, what it holds and what was expected.

*Workers* are all programs that use libcoordd, from C, C++ or Python. *Python* is the package `coordd` itself. `coordrun` sets many
of these variables for its workers, and hands on the others as it finds them.

)";

// "`COORDD_ADDR`" is the heading; this is the anchor that renderers make of it.
std::string Anchor(absl::string_view name) {
  return absl::StrCat("#", absl::AsciiStrToLower(name));
}

// `text` in lines of at most kPageWidth; the second and later ones begin with `indent`.
std::string Wrapped(absl::string_view text, absl::string_view indent) {
  std::string out;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > 0 && column + 1 + word.size() > kPageWidth) {
      absl::StrAppend(&out, "\n", indent);
      column = indent.size();
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out + "\n";
}

void AppendIndex(std::string* page) {
  absl::StrAppend(page, "| variable | what it says |\n|---|---|\n");
  for (const VariableRow& row : kRows)
    absl::StrAppend(page, "| [`", row.name, "`](", Anchor(row.name), ") | ", row.summary, " |\n");
}

void AppendRow(const VariableRow& row, std::string* page) {
  absl::StrAppend(page, "\n### `", row.name, "`\n\n", row.summary, ".\n");
  if (!row.more.empty()) absl::StrAppend(page, "\n", Wrapped(row.more, ""));
  absl::StrAppend(page, "\n", Wrapped(absl::StrCat("- Value: ", row.values), "  "));
  absl::StrAppend(page, Wrapped(absl::StrCat("- Default: ", row.default_value), "  "));
  absl::StrAppend(page, Wrapped(absl::StrCat("- Read by: ", row.readers), "  "));
}

}  // namespace

absl::Span<const VariableRow> VariableTable() { return kRows; }

const VariableRow& VariableNamed(absl::string_view name) {
  const VariableRow* found = nullptr;
  for (const VariableRow& row : kRows)
    if (row.name == name) found = &row;
  COORDD_CHECK(found != nullptr);
  return *found;
}

std::string EnvironmentPage() {
  std::string page(kBegin);
  AppendIndex(&page);
  absl::string_view group;
  for (const VariableRow& row : kRows) {
    if (row.group != group) absl::StrAppend(&page, "\n## ", row.group, "\n");
    group = row.group;
    AppendRow(row, &page);
  }
  return page;
}

}  // namespace coordd
