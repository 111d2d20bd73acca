#include "tests/support/gpu/fake_nccl.h"

#include <sys/random.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_nccl_comm.h"
#include "tests/support/gpu/fake_nccl_rules.h"
#include "tests/support/gpu/fake_nccl_version.h"
#include "tests/support/gpu/fake_rest.h"

using namespace coordd;

namespace coordd {

namespace {
std::mutex rule_mu;
std::string broken_rule;
std::mutex error_mu;
std::string last_error;  // as NCCL's: of the process
}  // namespace

void BreakRule(const std::string& rule) {
  std::lock_guard lock(rule_mu);
  if (broken_rule.empty()) broken_rule = rule;
}

void SetError(const std::string& text) {
  std::lock_guard lock(error_mu);
  last_error = text;
}

NcclResult Refuse(const std::string& rule) {
  BreakRule(rule);
  SetError(rule);
  return NcclResult::kInvalidUsage;
}

void PollInit(FakeComm& comm) {
  if (FakeNcclSettings().Get("init_never") != 0 || comm.clique->attached() < comm.size) return;
  const auto [a, b] = comm.clique->SameDevice();
  if (a >= 0 && FakeNcclSettings().Get("shared_device") == 0) {
    SetError(kFakeNcclSharesDevices
                 ? "Multiple Ranks are using the same GPU/Partition. Set "
                   "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this"
                 : "Duplicate GPU detected : rank " + std::to_string(a) + " and rank " +
                       std::to_string(b) + " both on CUDA device 18000");
    comm.error = static_cast<int>(NcclResult::kInvalidUsage);
    return;
  }
  if (comm.polls > 0) {
    --comm.polls;
    return;
  }
  SayConnections(comm);
  comm.initialised = true;
}

}  // namespace coordd

namespace {

std::atomic<long> live = 0, aborted_count = 0, finalized_count = 0, calls_count = 0,
                  revoked_count = 0;

struct Enqueued {
  std::shared_ptr<FakeComm> comm;
  std::vector<FakeCall> calls;
  bool fails = false;
};

// As NCCL's: what a graph has of a communicator keeps it from being freed.
void Capture(const std::shared_ptr<FakeComm>& comm, CudaStream stream,
             std::vector<FakeCall> calls) {
  for (FakeCall& call : calls) call.captured = true;
  ++comm->in_graphs;
  fake_cuda_capture(
      stream,
      [](void* argument) {
        Enqueued& run = *static_cast<Enqueued*>(argument);
        ++run.comm->launched;
        RunCalls(*run.comm, run.calls);
        --run.comm->launched;
      },
      [](void* argument) {
        const std::unique_ptr<Enqueued> ended(static_cast<Enqueued*>(argument));
        --ended->comm->in_graphs;
      },
      new Enqueued{comm, std::move(calls), false});
}

// What this thread has called since ncclGroupStart, by communicator and stream.
struct Group {
  int depth = 0;
  std::vector<std::pair<std::shared_ptr<FakeComm>, CudaStream>> order;
  std::map<std::pair<FakeComm*, CudaStream>, std::vector<FakeCall>> calls;
};
thread_local Group group;

// Of a blocking communicator; OK: false: it was aborted meanwhile.
bool Connect(FakeComm& comm, const std::vector<FakeCall>& calls) {
  if (!comm.blocking || comm.size == 1) return true;
  for (const FakeCall& call : calls) {
    const bool of_two = call.kind == FakeCall::kSend || call.kind == FakeCall::kRecv;
    if (of_two || !comm.connected.insert(call.kind).second) continue;
    const uint32_t number = comm.clique->AddWindow(comm.rank, {});
    const char* differs = nullptr;
    ++comm.connecting;
    for (FakeRest rest; !comm.clique->WindowIsMade(number, &differs) && !comm.Aborted();)
      rest.Once();
    const bool aborted = comm.Aborted();
    --comm.connecting;
    if (aborted) return false;
  }
  return true;
}

void Flush(const std::shared_ptr<FakeComm>& comm, CudaStream stream, std::vector<FakeCall> calls) {
  if (fake_cuda_is_capturing(stream) != 0) {
    comm->polls = comm->blocking ? 0 : FakeNcclSettings().Get("call_polls");
    ++comm->given;
    return Capture(comm, stream, std::move(calls));
  }
  auto* enqueued = new Enqueued{comm, std::move(calls), false};
  const long error = FakeNcclSettings().Take("async_error");
  if (error != 0) {
    enqueued->fails = true;
    SetError("Call to recv failed : Connection reset by peer");
    comm->coming_error = static_cast<int>(error);
  }
  comm->polls = comm->blocking ? 0 : FakeNcclSettings().Get("call_polls");
  ++comm->launched;
  ++comm->given;
  fake_cuda_enqueue(
      stream,
      [](void* argument) {
        const std::unique_ptr<Enqueued> run(static_cast<Enqueued*>(argument));
        for (FakeRest rest; run->fails && !run->comm->Aborted();) rest.Once();
        if (!run->fails) RunCalls(*run->comm, run->calls);
        --run->comm->launched;
      },
      enqueued);
}

NcclResult Add(NcclComm handle, CudaStream stream, FakeCall call) {
  ++calls_count;
  if (handle == nullptr) return NcclResult::kInvalidArgument;
  const std::shared_ptr<FakeComm>& comm = handle->comm;
  if (!comm->initialised) return Refuse("a call before the end of init");
  if (comm->error != 0) return static_cast<NcclResult>(comm->error.load());
  if (comm->polls > 0 || comm->window_pending || comm->shrinking)
    return Refuse("a call while the one before is in progress");
  if (comm->finalized) return Refuse("a call after ncclCommFinalize");
  if (comm->revoked) return Refuse("a call after ncclCommRevoke");
  if (fake_cuda_current_device() != comm->device)
    return Refuse("a call while another device is current");
  if (call.count > 0 &&
      (!OnDevice(call.input, comm->device) || !OnDevice(call.output, comm->device)))
    return Refuse("a buffer that is not memory of the communicator's device");
  if (const char* rule = Float8Rule(call, FAKE_NCCL_VERSION); rule != nullptr) return Refuse(rule);
  if (const char* rule = ResolveOperator(*comm, call); rule != nullptr) return Refuse(rule);
  if (group.depth == 0) {
    if (!Connect(*comm, {call})) return NcclResult::kInternalError;
    Flush(comm, stream, {call});
    return comm->polls > 0 ? NcclResult::kInProgress : NcclResult::kSuccess;
  }
  auto& calls = group.calls[{comm.get(), stream}];
  if (calls.empty()) group.order.emplace_back(comm, stream);
  calls.push_back(call);
  return NcclResult::kSuccess;
}

NcclResult Begin(NcclComm* handle, int size, const NcclUniqueId* ids, int count, int rank,
                 NcclConfig* config) {
  *handle = nullptr;
  const long error = FakeNcclSettings().Get("init_error");
  if (error != 0) {
    SetError("the fake was told to refuse");
    return static_cast<NcclResult>(error);
  }
  if (const char* rule = ConfigRule(config); rule != nullptr) return Refuse(rule);
  if (fake_cuda_current_device() < 0) return Refuse("no device is current");
  auto comm = std::make_shared<FakeComm>();
  comm->clique = FakeClique::Attach(ids, count, size, rank);
  if (comm->clique == nullptr) return Refuse("an id that was used twice");
  comm->size = size;
  comm->rank = rank;
  comm->device = fake_cuda_current_device();
  comm->clique->SetDevice(rank, static_cast<uint32_t>(comm->device));
  comm->id = ids[0];
  comm->polls = FakeNcclSettings().Get("init_polls");
  comm->abort_flag = fake_cuda_allocate_pinned();
  comm->blocking = config->blocking == 1;
  *handle = new NcclCommHandle{comm};
  ++live;
  if (!comm->blocking) return NcclResult::kInProgress;
  for (FakeRest rest; !comm->initialised && comm->error == 0; rest.Once()) PollInit(*comm);
  return static_cast<NcclResult>(comm->error.load());
}

// NCCL's frees wait for what is on the device, whatever its stream.
void Free(NcclComm handle) {
  if (handle->comm->sharers > 0)
    BreakRule("a communicator freed before one that shares its resources");
  const auto parent = std::exchange(handle->comm->shares_with, nullptr);
  if (parent != nullptr && handle->comm->initialised) --parent->sharers;
  if (handle->comm->abort_flag != nullptr) fake_cuda_free_pinned(handle->comm->abort_flag);
  --live;
  delete handle;
}

// Whether nothing that was launched runs any more; NCCL asks that in a thread of its own.
bool PollRevocation(FakeComm& comm) {
  if (comm.launched > 0 || comm.connecting > 0) return false;
  if (comm.revocation_ended.exchange(true)) return true;
  comm.aborted = false;  // as NCCL does: what was launched now would wait for its peers again
  ++revoked_count;
  return true;
}

}  // namespace

bool coordd::InFakeGroup() { return group.depth > 0; }
void coordd::NoteFakeHandle() { ++live; }

extern "C" {

void fake_nccl_set(const char* name, long value) { FakeNcclSettings().Set(name, value); }
const char* fake_nccl_broken_rule() {
  static thread_local std::string answer;
  std::lock_guard lock(rule_mu);
  answer = std::exchange(broken_rule, "");
  return answer.c_str();
}
long fake_nccl_live_communicators() { return live; }
long fake_nccl_calls() { return calls_count; }
long fake_nccl_aborted_communicators() { return aborted_count; }
long fake_nccl_revoked_communicators() { return revoked_count; }
long fake_nccl_finalized_communicators() { return finalized_count; }

NcclResult ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return NcclResult::kSuccess;
}
const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case NcclResult::kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case NcclResult::kRemoteError:
      return "remote process exited or there was a network error";
    case NcclResult::kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    default:
      return "internal error - please report this issue to the NCCL developers";
  }
}
const char* ncclGetLastError(NcclComm) {
  static thread_local std::string answer;
  std::lock_guard lock(error_mu);
  answer = last_error;
  return answer.c_str();
}
NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  if (const long error = FakeNcclSettings().Get("id_error"); error != 0) {
    SetError("the fake was told to fail");
    return static_cast<NcclResult>(error);
  }
  static std::mutex mu;
  static NcclUniqueId last;
  static bool is_there = false;
  std::lock_guard lock(mu);
  if (!is_there || FakeNcclSettings().CountDown("id_repeats")) {
    if (getrandom(last.bytes, sizeof(last.bytes), 0) != sizeof(last.bytes))
      return NcclResult::kSystemError;
    is_there = true;
  }
  *id = last;
  return NcclResult::kSuccess;
}
NcclResult ncclCommInitRankConfig(NcclComm* comm, int size, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  return Begin(comm, size, &id, 1, rank, config);
}
NcclResult ncclCommGetAsyncError(NcclComm handle, NcclResult* error) {
  FakeComm& comm = *handle->comm;
  if (!comm.initialised && comm.error == 0) {
    PollInit(comm);
    *error = comm.error != 0     ? static_cast<NcclResult>(comm.error.load())
             : !comm.initialised ? NcclResult::kInProgress
                                 : NcclResult::kSuccess;
    return NcclResult::kSuccess;
  }
  if (comm.revoked) {
    *error = PollRevocation(comm) ? NcclResult::kSuccess : NcclResult::kInProgress;
    return NcclResult::kSuccess;
  }
  // Errors of the network are noticed after the call that they concern.
  if (comm.coming_error != 0 && comm.polls == 0 && comm.error_is_near.exchange(true))
    comm.error = comm.coming_error.load();
  if (comm.finalized && comm.in_graphs > 0) {
    *error = NcclResult::kInProgress;
    return NcclResult::kSuccess;
  }
  if (comm.window_pending) PollWindow(comm);
  if (comm.shrinking) PollChild(comm);
  *error = static_cast<NcclResult>(comm.error.load());
  if (comm.error == 0 && (comm.window_pending || comm.shrinking)) *error = NcclResult::kInProgress;
  if (comm.error == 0 && comm.polls > 0) {
    --comm.polls;
    *error = NcclResult::kInProgress;
  }
  return NcclResult::kSuccess;
}
NcclResult ncclCommFinalize(NcclComm handle) {
  if (handle->comm->shrinking) return Refuse("ncclCommFinalize while it is being shrunk");
  if (!handle->comm->initialised) return Refuse("ncclCommFinalize before the end of init");
  if (handle->comm->revoked) return Refuse("ncclCommFinalize after ncclCommRevoke");
  handle->comm->finalized = true;
  ++finalized_count;
  return NcclResult::kSuccess;
}
NcclResult ncclCommDestroy(NcclComm handle) {
  if (!handle->comm->finalized && !handle->comm->revocation_ended)
    BreakRule("ncclCommDestroy without ncclCommFinalize");
  if (!handle->comm->registered.empty()) BreakRule("ncclCommDestroy before ncclCommDeregister");
  if (!handle->comm->operators.empty()) BreakRule("ncclCommDestroy before ncclRedOpDestroy");
  if (!handle->comm->windows.empty()) BreakRule("ncclCommDestroy before ncclCommWindowDeregister");
  for (FakeRest rest; handle->comm->in_graphs > 0;) rest.Once();
  Free(handle);
  return NcclResult::kSuccess;
}
NcclResult ncclCommAbort(NcclComm handle) {
  FakeRest rest;
  while (FakeNcclSettings().Get("abort_hangs") != 0) rest.Once();
  handle->comm->aborted = true;
  // NCCL waits for all that it has launched, also for what has not begun: ncclLaunchFinish lets a
  // stream of its own wait for it, which commDestroySync synchronises.
  while (handle->comm->launched > 0) rest.Once();
  // And for the graphs that refer to it (localPersistentRefs), unless it was revoked: then they
  // would refer to what is gone.
  if (handle->comm->revocation_ended && handle->comm->in_graphs > 0)
    BreakRule("ncclCommAbort of a revoked communicator that graphs refer to");
  while (handle->comm->in_graphs > 0) rest.Once();
  {
    std::lock_guard lock(handle->comm->mu);
    if (handle->comm->child != nullptr) EndChild(*handle->comm);
  }
  for (const auto& [window, made] : handle->comm->windows) ForgetWindow(made.memory);
  Free(handle);
  ++aborted_count;
  return NcclResult::kSuccess;
}

NcclResult ncclAllReduce(const void* input, void* output, size_t count, NcclType type, NcclOp op,
                         NcclComm comm, CudaStream stream) {
  return Add(comm, stream, {FakeCall::kAllReduce, input, output, count, type, op, 0});
}
NcclResult ncclBroadcast(const void* input, void* output, size_t count, NcclType type, int root,
                         NcclComm comm, CudaStream stream) {
  return Add(comm, stream, {FakeCall::kBroadcast, input, output, count, type, NcclOp::kSum, root});
}
NcclResult ncclReduce(const void* input, void* output, size_t count, NcclType type, NcclOp op,
                      int root, NcclComm comm, CudaStream stream) {
  return Add(comm, stream, {FakeCall::kReduce, input, output, count, type, op, root});
}
NcclResult ncclAllGather(const void* input, void* output, size_t count, NcclType type,
                         NcclComm comm, CudaStream stream) {
  return Add(comm, stream, {FakeCall::kAllGather, input, output, count, type, NcclOp::kSum, 0});
}
NcclResult ncclReduceScatter(const void* input, void* output, size_t count, NcclType type,
                             NcclOp op, NcclComm comm, CudaStream stream) {
  return Add(comm, stream, {FakeCall::kReduceScatter, input, output, count, type, op, 0});
}
NcclResult ncclSend(const void* input, size_t count, NcclType type, int peer, NcclComm comm,
                    CudaStream stream) {
  return Add(comm, stream, {FakeCall::kSend, input, nullptr, count, type, NcclOp::kSum, peer});
}
NcclResult ncclRecv(void* output, size_t count, NcclType type, int peer, NcclComm comm,
                    CudaStream stream) {
  return Add(comm, stream, {FakeCall::kRecv, nullptr, output, count, type, NcclOp::kSum, peer});
}
NcclResult ncclGroupStart() {
  ++group.depth;
  return NcclResult::kSuccess;
}
NcclResult ncclGroupEnd() {
  if (group.depth == 0) return Refuse("ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return NcclResult::kSuccess;
  bool in_progress = false;
  for (const auto& [comm, stream] : group.order) {
    if (!Connect(*comm, group.calls[{comm.get(), stream}])) {
      group.order.clear();
      group.calls.clear();
      return NcclResult::kInternalError;
    }
    Flush(comm, stream, std::move(group.calls[{comm.get(), stream}]));
    in_progress = in_progress || comm->polls > 0;
  }
  group.order.clear();
  group.calls.clear();
  return in_progress ? NcclResult::kInProgress : NcclResult::kSuccess;
}

#if FAKE_NCCL_SCALES
NcclResult ncclCommInitRankScalable(NcclComm* comm, int size, int rank, int ids, NcclUniqueId* id,
                                    NcclConfig* config) {
  for (int i = 1; i < ids; ++i) {
    if (std::memcmp(id[i].bytes, id[0].bytes, sizeof(id[0].bytes)) == 0)
      return Refuse("two equal ids for one communicator");
  }
  return Begin(comm, size, id, ids, rank, config);
}
#endif
#if FAKE_NCCL_REVOKES
// What runs is told to end; nothing is freed.
NcclResult ncclCommRevoke(NcclComm handle, int flags) {
  FakeComm& comm = *handle->comm;
  for (FakeRest rest; FakeNcclSettings().Get("abort_hangs") != 0;) rest.Once();
  if (flags != kNcclRevokeDefault || comm.finalized || comm.revoked)
    return NcclResult::kInvalidArgument;
  if (!comm.initialised || comm.shrinking) return Refuse("ncclCommRevoke before the end of init");
  comm.aborted = true;
  comm.revoked = true;
  return NcclResult::kInProgress;
}
#endif

}  // extern "C"
