// A communicator of fake_nccl.so, and what is done on its streams.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/gpu/fake_clique.h"
#include "tests/support/gpu/fake_settings.h"
#include "worker/gpu/nccl/nccl_api.h"

namespace coordd {

FakeSettings& FakeNcclSettings();
// Remembers the first rule that is broken.
void BreakRule(const std::string& rule);

struct FakeComm {
  NcclUniqueId id = {};         // which of the cliques it is
  std::atomic<long> given = 0;  // calls, in all
  // What ncclCommShrink makes of it, until that has come to its end; guarded by mu.
  std::shared_ptr<FakeComm> child;
  NcclComm* child_slot = nullptr;
  uint32_t children = 0;
  std::atomic<bool> shrinking = false;  // or being split
  bool splits = false;
  std::shared_ptr<FakeComm> shares_with;  // of a child of ncclCommSplit: its parent, and
  std::atomic<int> sharers = 0;           // how many such children that has
  // Kinds of call that the ranks are connected for; of a blocking one the first of a kind waits for
  // the other ranks' (NCCL's runtime connection).
  std::set<int> connected;
  std::atomic<int> connecting = 0;  // threads that wait so
  std::shared_ptr<FakeClique> clique;
  int size = 1, rank = 0, device = 0;
  std::atomic<bool> initialised = false;
  void* abort_flag = nullptr;  // pinned memory, which is freed with it
  bool blocking = false;
  std::atomic<bool> aborted = false;
  std::atomic<bool> revoked = false;
  std::atomic<bool> revocation_ended = false;
  std::atomic<bool> finalized = false;
  std::atomic<int> error = 0;         // asynchronous
  std::atomic<int> coming_error = 0;  // seen at the poll after that which finds it launched
  std::atomic<bool> error_is_near = false;
  std::atomic<long> polls = 0;      // that what was begun still takes
  std::atomic<long> launched = 0;   // and has not ended on its stream
  std::atomic<long> in_graphs = 0;  // calls, of graphs that are still there
  std::mutex mu;
  std::map<const void*, size_t> registered;  // buffers; guarded by mu
  // By ncclRedOpCreatePreMulSum: type and factor; guarded by mu.
  std::map<NcclOp, std::pair<NcclType, double>> operators;
  int operators_made = 0;
  // A window that is being made, until all ranks have come to it; guarded by mu.
  struct Window {
    void* memory = nullptr;  // as ncclMemAlloc gave it
    FakeWindow shared;
  };
  uint32_t window_number = 0;
  Window next_window;
  NcclWindow* window_slot = nullptr;
  std::atomic<bool> window_pending = false;
  std::map<NcclWindow, Window> windows;  // guarded by mu
  uint64_t windows_end = 0;              // of 2.27, which takes no place twice; guarded by mu

  bool Aborted() const { return aborted; }
};

// NCCL's handle: what streams run keeps the communicator itself.
struct NcclCommHandle {
  std::shared_ptr<FakeComm> comm;
};

// What ncclGetLastError says next.
void SetError(const std::string& text);
// BreakRule, and the error to return.
NcclResult Refuse(const std::string& rule);

// As NCCL does with NCCL_DEBUG=INFO: what the communicator's ranks are connected by, to
// NCCL_DEBUG_FILE or the standard output, in the words of this version.
void SayConnections(const FakeComm& comm);
// Moves init on; NCCL does so in a thread of its own.
void PollInit(FakeComm& comm);
// The same for what is being made of this one; leaves the handle at the end, as NCCL does, also of
// what has failed or, by EndChild, was stopped.
void PollChild(FakeComm& comm);
void EndChild(FakeComm& comm);
// Whether this thread has called ncclGroupStart.
bool InFakeGroup();
// One handle more has to be destroyed or aborted.
void NoteFakeHandle();
// Makes the window that is pending, once all ranks have come to it.
void PollWindow(FakeComm& comm);
// A communicator has no window of it any more.
void ForgetWindow(void* memory);

// One call of a collective; kSend and kRecv are exchanged together with their neighbours.
struct FakeCall {
  enum Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kSend, kRecv };
  Kind kind = kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;
  NcclType type = NcclType::kUint8;
  NcclOp op = NcclOp::kSum;
  int peer = 0;           // or root
  bool captured = false;  // on all ranks, or on none
  double input_factor = 1.0;
};

// The sum that the operator of a call is, with its factor; returns the rule that is broken, or
// nullptr.
const char* ResolveOperator(FakeComm& comm, FakeCall& call);
// The call's input, or what it is when multiplied, in `place`.
const char* Multiplied(const FakeCall& call, DataType dtype, size_t bytes,
                       std::vector<std::byte>* place);

size_t SizeOfNccl(NcclType type);
// Runs the calls of one group, in order; on the stream's thread.
void RunCalls(FakeComm& comm, const std::vector<FakeCall>& calls);

}  // namespace coordd
