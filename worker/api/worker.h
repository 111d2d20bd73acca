// A member of a job: joins coordd, executes collectives in the order that all ranks agree on,
// leaves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/protocol/store.h"
#include "common/protocol/tensor_spec.h"
#include "worker/api/comm.h"
#include "worker/api/prepared_group.h"
#include "worker/api/worker_options.h"
#include "worker/base/memory_file.h"
#include "worker/execute/work.h"

namespace coordd {

// Where a tensor is. Buffers are dense and row-major.
struct TensorBuffers {
  const void* input = nullptr;
  // nullptr: the runtime allocates the result (allgather, gather, alltoall, reducescatter). Equal
  // to input: in place (allreduce, broadcast, reduce). On ranks that get no result it is not looked
  // at (reduce and gather elsewhere than on the root, send).
  void* output = nullptr;
  // Bytes of `output` for allgather, gather, alltoall and reducescatter when given;
  // INVALID_ARGUMENT when the result is larger.
  int64_t output_capacity_bytes = 0;
  std::vector<int64_t> splits;  // alltoall: rows for each rank; empty: shape[0] / size each
  int32_t device = -1;          // CUDA device index; -1: host
  uintptr_t stream = 0;         // cudaStream_t on which the input becomes ready; 0: default stream
};

// One tensor to submit.
struct Submission : TensorBuffers {
  TensorSpec spec;                                // its `group` is the runtime's to fill
  absl::Duration timeout = absl::ZeroDuration();  // 0: WorkerOptions::collective_timeout
};

// Memory of the program on a device.
struct DeviceRange {
  ProcessSetId process_set;  // whose collectives use it
  int32_t device = -1;       // CUDA device index
  void* memory = nullptr;
  int64_t size_bytes = 0;
};

// A place in a generation. Ranks of a node are consecutive.
struct Placement {
  Generation generation;
  int32_t rank = 0, size = 0;
  int32_t local_rank = 0, local_size = 0;
  int32_t cross_rank = 0, cross_size = 0;
  int32_t nodes = 0;
  bool homogeneous = false;  // all nodes have as many ranks
};

// A callback must not block, wait for a Work or end the worker; it may submit.
using GenerationCallback = std::function<void(const Placement&)>;

// Thread-safe. After fork() a child's calls fail with FAILED_PRECONDITION and its destructor does
// nothing.
class Worker {
 public:
  // Connects, joins, waits for a generation, connects the data plane. Blocks up to join_timeout +
  // connect_timeout. Errors: UNAVAILABLE coordd cannot be reached; DEADLINE_EXCEEDED how many of
  // how many workers came; what Session's Join is refused with.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerOptions& options,
                                                       Clock& clock = Clock::Real());

  virtual ~Worker() = default;  // Shutdown

  // Where this rank is in the generation that the program knows. It changes when AwaitGeneration
  // says so; with WorkerOptions::on_failure kContinue, as soon as this rank has heard of the next
  // one.
  virtual Placement placement() const = 0;
  virtual std::string metrics_address() const = 0;  // "host:port" as announced; empty: off
  // A numeric address of this machine by which the other ranks of this generation reach it.
  virtual std::string host_address() const = 0;
  // OK while the generation is alive; afterwards why it is not: the error of every further call,
  // until AwaitGeneration has returned the next one.
  virtual absl::Status status() const = 0;
  // Waits until status() is no longer OK or `deadline` passes; returns status().
  virtual absl::Status AwaitEnd(absl::Time deadline) = 0;
  // With WorkerOptions::on_failure kRaise, what the program calls when a call has failed because
  // the generation had changed (IsGenerationChanged): waits until the survivors have formed the
  // next one and are connected, and takes note of it. From then on everything is about that one;
  // Works of older ones have failed. Returns at once while the generation is alive.
  // With kContinue nobody has to call it. DEADLINE_EXCEEDED; otherwise why no generation follows.
  virtual absl::StatusOr<Placement> AwaitGeneration(absl::Time deadline) = 0;
  // With WorkerOptions::on_failure kContinue: has `entered` called for every generation that
  // follows from now on, before any result of it and any error that its coming means, on a thread
  // of the runtime or on one that is in a call of this object. Null: nothing is called any more
  // once this has returned, unless it is called by one of them.
  virtual void OnGeneration(GenerationCallback entered) = 0;
  // Workers that wait to become members, as far as this rank knows: ranks may differ for a moment.
  // 0 in a job that ends with its first generation.
  virtual int32_t newcomers() const = 0;
  // Collective, with WorkerOptions::on_failure kRaise or kContinue: all ranks have come to a point
  // at which others may join them, and have agreed to call it. Ends the generation (what is pending
  // fails, or with kContinue goes on) and waits for the next one, as AwaitGeneration does; those
  // who wait are in it. `agreed_in`, with kContinue: the generation of the result by which the
  // ranks have agreed, which is the same on all, while losses may have ended it here and not there.
  // If one has, returns at once, and those who wait go on waiting.
  virtual absl::StatusOr<Placement> ChangeMembers(Generation agreed_in, absl::Time deadline) = 0;
  // What is left of the time in which this rank is to leave, since an operator, a launcher or its
  // own program has asked for that; nothing: it may stay. It leaves by Shutdown, when all ranks
  // have come to a point at which the members may change and have agreed to it (ChangeMembers, for
  // the others): they go on as the next generation. When the time is over it is evicted.
  virtual std::optional<absl::Duration> drain_left() const = 0;
  // Says that this process has to end within `grace`: drain_left tells so from then on, and a
  // Shutdown is no end of the job. FAILED_PRECONDITION: with WorkerOptions::on_failure kEnd it
  // would be.
  virtual absl::Status AskToLeave(absl::Duration grace, const std::string& reason) = 0;

  // Returns once queued; the buffers belong to the runtime until the Work is done. Statuses:
  // INVALID_ARGUMENT a bad spec or buffer; ALREADY_EXISTS a tensor of this name is pending here;
  // the generation's end, as status(); RESOURCE_EXHAUSTED too many tensors are pending here.
  virtual absl::StatusOr<std::shared_ptr<Work>> Submit(Submission submission) = 0;
  // Submits, then waits until `deadline` at most, and returns the Work whether or not it is done.
  // What can be executed at once this thread executes itself, while it waits.
  virtual absl::StatusOr<std::shared_ptr<Work>> SubmitAndWait(Submission submission,
                                                              absl::Time deadline) = 0;
  // Submits a group, all or nothing: its tensors are planned together, in the same generation. It
  // has one process set, a name, and as many buffers as specs; `timeout` as in Submission.
  virtual absl::StatusOr<std::vector<std::shared_ptr<Work>>> SubmitGroup(
      PreparedGroup& group, std::vector<TensorBuffers> buffers, absl::Duration timeout) = 0;
  // Submits a group that was not prepared. The timeout is that of the first tensor.
  absl::StatusOr<std::vector<std::shared_ptr<Work>>> SubmitGroup(
      const std::string& name, std::vector<Submission> submissions);

  // Process sets: every rank calls these with the same arguments in the same order; they block
  // until the last rank has, `timeout` at most (0: WorkerOptions::collective_timeout). `ranks` in
  // any order. INVALID_ARGUMENT: not ranks of the job, one twice or none at all, or what other
  // ranks asked for differs; ALREADY_EXISTS; FAILED_PRECONDITION: the set to remove has pending
  // tensors; DEADLINE_EXCEEDED; the generation's end. Where another generation follows, a set has
  // its number there, too, and those of its ranks that are left; with the last of them it ends.
  virtual absl::StatusOr<ProcessSetId> AddProcessSet(std::vector<int32_t> ranks,
                                                     absl::Duration timeout) = 0;
  // The same by the set's members alone, this rank among them, under a name of 1 to 256 bytes that
  // they all give it; the other ranks hear nothing of it. It has an order with nothing else, may
  // have the ranks of another set, and ends with its generation. ALREADY_EXISTS: a set has the
  // name, or this rank is asking under it. UNIMPLEMENTED: coordd is older.
  virtual absl::StatusOr<ProcessSetId> AddNamedProcessSet(const std::string& name,
                                                          std::vector<int32_t> ranks,
                                                          absl::Duration timeout) = 0;
  // By whoever has made it: all ranks, or the members.
  virtual absl::Status RemoveProcessSet(ProcessSetId process_set, absl::Duration timeout) = 0;
  // Members in their order; 0: all ranks. INVALID_ARGUMENT: there is no such set.
  virtual absl::StatusOr<std::vector<int32_t>> ProcessSetRanks(ProcessSetId process_set) const = 0;
  // The numbers of those that there are, without 0, in order, as this rank knows them.
  virtual std::vector<ProcessSetId> ProcessSets() const = 0;
  // The highest number that a set had when this worker became a member; 0: there had been none.
  virtual ProcessSetId last_process_set_found() const = 0;

  // Collective: every member of the set calls it with the same name. A comm of this generation,
  // whose calls have `timeout` each, as this one (0: WorkerOptions::collective_timeout). What is
  // agreed on is two tensors called "coordd.comm/NAME/...". INVALID_ARGUMENT: there is no such set,
  // a bad name; ALREADY_EXISTS: this rank is making one of this name; RESOURCE_EXHAUSTED: too many,
  // here or on another member; FAILED_PRECONDITION: a member has joined (it has no more data);
  // UNIMPLEMENTED: with WorkerOptions::on_failure kContinue; as Submit and Work.
  virtual absl::StatusOr<std::unique_ptr<Comm>> CreateComm(ProcessSetId process_set,
                                                           const std::string& name,
                                                           absl::Duration timeout) = 0;

  // Memory for tensors and buffers of collectives, 64-byte aligned, all zero, until FreeMemory or
  // the worker's end. Where the ranks of a node map each other's memory, what lies in it takes part
  // without a copy, until the generation ends: after AwaitGeneration or ChangeMembers it is private
  // memory, with the same address and contents; nobody else touches it while these are called.
  // Children of a fork do not have it. INVALID_ARGUMENT; RESOURCE_EXHAUSTED; the generation's end.
  virtual absl::StatusOr<void*> AllocateMemory(int64_t size_bytes) = 0;
  // REQUIRES: no collective that is pending or has failed uses it. INVALID_ARGUMENT: it is not what
  // AllocateMemory has returned.
  virtual absl::Status FreeMemory(void* memory) = 0;
  // The program's own memory, bytes of a memfd, for the same use; `timeout` as Submit's. Collective
  // over the ranks of the node if they map each other's memory: each gives its own, of any size.
  // Returns where it is, until UnregisterMemory. After the generation's end that is a private copy,
  // if others had it mapped.
  // INVALID_ARGUMENT: it cannot be mapped by others, and why; FAILED_PRECONDITION: another rank's
  // cannot, and whose; DEADLINE_EXCEEDED: who did not come; RESOURCE_EXHAUSTED; the generation's
  // end.
  virtual absl::StatusOr<void*> RegisterMemory(const FileRange& file, absl::Duration timeout) = 0;
  // Ends what RegisterMemory began; it is as collective as that. REQUIRES: as FreeMemory.
  // INVALID_ARGUMENT: it is not what RegisterMemory has returned. With any other error the memory
  // is gone, too.
  virtual absl::Status UnregisterMemory(void* memory, absl::Duration timeout) = 0;
  // Whether these bytes take part without a copy. INVALID_ARGUMENT: private pages, which nobody can
  // map; FAILED_PRECONDITION: of AllocateMemory or RegisterMemory, but private, and why.
  virtual absl::Status CheckMapped(const void* memory, int64_t size_bytes) const = 0;

  // Lets NCCL know memory of a device that the set's collectives use again and again, so that it
  // may move from and to it without a copy of its own; until UnregisterDeviceMemory, or the
  // generation's end. Collective: all ranks of the set call it, in one order with other calls of
  // it, each with its own memory. From then on they give to a collective what they have all
  // registered, or none of them does; and none of them joins (Submit of kJoin). With symmetric GPU
  // windows, memory of AllocateDeviceMemory from its beginning, equal in sizes on all ranks, is one
  // of them. UNIMPLEMENTED: not all ranks can, and why; with kContinue. INVALID_ARGUMENT: it is not
  // memory of the device, or registered there already. RESOURCE_EXHAUSTED: too much is;
  // DEADLINE_EXCEEDED; UNAVAILABLE; the generation's end.
  virtual absl::Status RegisterDeviceMemory(const DeviceRange& range, absl::Duration timeout) = 0;
  // Of this rank alone, before the memory is freed: returns when NCCL does not know it any more.
  // REQUIRES: no collective that is pending uses it. INVALID_ARGUMENT: it does not begin what this
  // generation has registered in the set; DEADLINE_EXCEEDED: the device is not through with what
  // was launched before; FAILED_PRECONDITION: a registration in the set is under way meanwhile. OK
  // without a generation: NCCL knows nothing then.
  virtual absl::Status UnregisterDeviceMemory(ProcessSetId process_set, const void* memory,
                                              absl::Duration timeout) = 0;

  // CUDA graphs. Collective, of all ranks of a set, once in each generation before anything is
  // captured: makes a communicator of NCCL for what is captured from then on, on this device.
  // Tensors whose stream is captured then become a part of the graph, and their Works are complete
  // at once: allreduce, reducescatter and allgather of equal blocks, broadcast, alone or in groups,
  // with outputs that the caller gives, in the same order on all ranks. UNIMPLEMENTED: not all
  // ranks have NCCL, and why; INVALID_ARGUMENT; DEADLINE_EXCEEDED; UNAVAILABLE; the generation's
  // end.
  virtual absl::Status PrepareGraphs(ProcessSetId process_set, int32_t device,
                                     absl::Duration timeout) = 0;
  // Collective: INVALID_ARGUMENT, on all ranks of the set: the first call that they have not
  // captured alike in this generation. FAILED_PRECONDITION: not prepared; as PrepareGraphs.
  virtual absl::Status CheckGraphs(ProcessSetId process_set, absl::Duration timeout) = 0;

  // Writes what this rank executes, and when, to a file that Perfetto opens, as long as
  // StopTimeline is not called. Rank 0 does; others only if the path has "{rank}" in it, which is
  // replaced. `mark_steps`: an event where a repetition of a schedule begins. INVALID_ARGUMENT: it
  // cannot be written; FAILED_PRECONDITION: one is being written.
  virtual absl::Status StartTimeline(const std::string& path, bool mark_steps) = 0;
  // Does nothing when there is none. UNAVAILABLE, RESOURCE_EXHAUSTED: why the file is not complete.
  virtual absl::Status StopTimeline() = 0;

  // Values for the other members, scoped to the job.
  virtual Store& store() = 0;

  // Waits for what is planned, fails the rest with CANCELLED, says goodbye. Idempotent. `timeout`
  // bounds it all.
  virtual absl::Status Shutdown(absl::Duration timeout) = 0;
  // Finishes all work without the goodbye, which another call says. If nobody does for as long as
  // `hold`, it is said. For a program of which it is not known yet whether it ends well.
  virtual absl::Status FinishWork(absl::Duration hold, absl::Duration timeout) = 0;
  // Instead of a goodbye: the program ends by this error, one sentence ("ValueError: bad batch").
  // coordd and the others hear of it, for whom this rank is lost as if its process had been killed;
  // what is executing here is aborted. After a goodbye it does nothing.
  virtual absl::Status Fail(const std::string& failure, absl::Duration timeout) = 0;
  // Says, as Fail does, that the program has failed: the process exits with this status, which is
  // not 0.
  virtual absl::Status FailByExit(int status, absl::Duration timeout) = 0;
};

}  // namespace coordd
