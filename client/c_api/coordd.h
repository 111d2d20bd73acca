/* coordd: coordination and collectives for distributed training. The stable C interface.
 *
 * A process becomes a member of a job with coordd_worker_start, submits named tensors to
 * collectives in any order, and gets every result, or an error that names rank, tensor and cause,
 * before a deadline. A whole program:
 *
 *     coordd_worker_t* worker = NULL;
 *     if (coordd_worker_start(NULL, &worker) != COORDD_OK) {     // options from COORDD_* variables
 *       fprintf(stderr, "%s\n", coordd_last_error());
 *       return 1;
 *     }
 *     float gradient[256] = {0};
 *     const int64_t shape[] = {256};
 *     coordd_tensor_t tensor = COORDD_TENSOR_INIT;
 *     tensor.name = "layer1.weight";
 *     tensor.input = tensor.output = gradient;                   // in place
 *     tensor.dtype = COORDD_FLOAT32;
 *     tensor.shape = shape;
 *     tensor.ndim = 1;
 *     if (coordd_allreduce(worker, &tensor, COORDD_AVERAGE, NULL, NULL) != COORDD_OK) ...
 *     coordd_worker_destroy(worker);
 *
 * Errors. Every function that can fail returns a coordd_status_t; its text is coordd_last_error()
 * of the calling thread. No exception and no signal crosses this border.
 *
 * Threads. Every function may be called from any thread, several at once, also on one handle; only
 * coordd_worker_destroy and coordd_work_release must be the last call on their handle. After fork()
 * the child's calls on handles of the parent fail with COORDD_FAILED_PRECONDITION, and so does a
 * worker's start there once one was started in the parent.
 *
 * Growth. Structures start with their own size, so that a program that was compiled against an
 * older header runs with a newer library: set it by COORDD_..._INIT. Members are only ever
 * appended; zero means the default. A structure that is larger than this library knows is accepted
 * while the unknown part is zero. Enumerators keep their numbers. coordd_abi_version() tells the
 * revision.
 *
 * Revision 2 added process sets, join, reduce, gather, send, receive and the grouped reducescatter;
 * 3 coordd_allreduce_for, coordd_launch_place, and the options launcher and port_range; 4
 * coordd_timeline_start and coordd_timeline_stop; 5 coordd_work_wait_on_stream; 6 the option
 * on_failure, coordd_worker_await_generation and COORDD_GENERATION_CHANGED; 7
 * coordd_worker_newcomers and coordd_worker_change_members; 8 comms (comm.h); 9 coordd_alloc,
 * coordd_free and coordd_register (memory.h); 10 coordd_worker_drain_seconds and
 * coordd_worker_ask_to_leave; 11 coordd_process_set_list; 12 coordd_worker_on_generation and
 * coordd_worker_change_members_of; 13 COORDD_FLOAT8_E4M3FN and COORDD_FLOAT8_E5M2, and the options
 * stack_signal and stack_fd; 14 coordd_register_memfd and coordd_unregister; 15 coordd_worker_fail,
 * coordd_worker_leave_at_exit (leaving.h) and coordd_refuse_async (collectives.h); 16
 * coordd_graphs_prepare and coordd_graphs_check (collectives.h); 17 what store.h has beside set,
 * get and add; 18 coordd_process_set_add_members (process_sets.h); 19 coordd_worker_host_address;
 * 20 coordd_comm_..._async and coordd_comm_..._for (comm.h); 21 the option settling_window_seconds;
 * 22 coordd_comm_send_async, _receive_async; 23 coordd_comm_alltoallv; 24 coordd_comm_withdraw; 25
 * coordd_(un)register_device, 26 coordd_alloc_device, coordd_free_device, coordd_torch_alloc,
 * coordd_torch_free (memory.h).
 */
#ifndef COORDD_COORDD_H_
#define COORDD_COORDD_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define COORDD_API __attribute__((visibility("default")))
#else
#define COORDD_API
#endif

/* Revision of this header. Grows when something is added; nothing is ever taken away. */
#define COORDD_ABI_VERSION 26

/* Revision of the library that is loaded, and its version, e.g. "0.1.0". */
COORDD_API uint32_t coordd_abi_version(void);
COORDD_API const char* coordd_version(void);

/* --- statuses ------------------------------------------------------------------------------ */

/* The numbers of gRPC, and one of our own. What each means here:
 *   COORDD_CANCELLED            withdrawn, or the worker was shut down
 *   COORDD_INVALID_ARGUMENT     a wrong argument here, or ranks that disagree about a tensor
 *   COORDD_DEADLINE_EXCEEDED    not in time; the text says who was missing
 *   COORDD_ALREADY_EXISTS       a tensor of this name is pending on this rank
 *   COORDD_RESOURCE_EXHAUSTED   out of memory, the job is full, or a queue stayed full
 *   COORDD_FAILED_PRECONDITION  wrong state: shut down, forked, limits that do not fit the job
 *   COORDD_ABORTED              the generation has ended: a member was lost or left
 *   COORDD_OUT_OF_RANGE         the caller's buffer is too small
 *   COORDD_UNIMPLEMENTED        not in this version; the text says what is
 *   COORDD_INTERNAL             a bug in coordd: report it
 *   COORDD_UNAVAILABLE          coordd cannot be reached
 *   COORDD_UNAUTHENTICATED      wrong or missing token
 *   COORDD_GENERATION_CHANGED   with on_failure "raise", instead of ABORTED: a member was lost, the
 *                               others form the next generation; coordd_worker_await_generation.
 *                               With "continue": the call means other ranks now; make it again
 */
typedef int32_t coordd_status_t;
enum {
  COORDD_OK = 0,
  COORDD_CANCELLED = 1,
  COORDD_UNKNOWN = 2,
  COORDD_INVALID_ARGUMENT = 3,
  COORDD_DEADLINE_EXCEEDED = 4,
  COORDD_NOT_FOUND = 5,
  COORDD_ALREADY_EXISTS = 6,
  COORDD_PERMISSION_DENIED = 7,
  COORDD_RESOURCE_EXHAUSTED = 8,
  COORDD_FAILED_PRECONDITION = 9,
  COORDD_ABORTED = 10,
  COORDD_OUT_OF_RANGE = 11,
  COORDD_UNIMPLEMENTED = 12,
  COORDD_INTERNAL = 13,
  COORDD_UNAVAILABLE = 14,
  COORDD_DATA_LOSS = 15,
  COORDD_UNAUTHENTICATED = 16,
  COORDD_GENERATION_CHANGED = 100
};

/* "ABORTED"; "status 99" for a number without a name. Static memory. */
COORDD_API const char* coordd_status_name(coordd_status_t status);

/* What went wrong in the last failed call on this thread: one sentence, never NULL, empty when
 * nothing has failed yet. Valid until the next call of any coordd function on this thread. */
COORDD_API const char* coordd_last_error(void);

/* --- tensors ------------------------------------------------------------------------------- */

typedef int32_t coordd_dtype_t;
enum {
  COORDD_UINT8 = 1,
  COORDD_INT8 = 2,
  COORDD_UINT16 = 3,
  COORDD_INT16 = 4,
  COORDD_UINT32 = 5,
  COORDD_INT32 = 6,
  COORDD_UINT64 = 7,
  COORDD_INT64 = 8,
  COORDD_FLOAT16 = 9,
  COORDD_BFLOAT16 = 10,
  COORDD_FLOAT32 = 11,
  COORDD_FLOAT64 = 12,
  COORDD_BOOL = 13,          /* one byte, 0 or 1 */
  COORDD_FLOAT8_E4M3FN = 14, /* no infinity: sums end at 448 */
  COORDD_FLOAT8_E5M2 = 15
};

typedef int32_t coordd_op_t;
enum {
  COORDD_SUM = 1,
  COORDD_AVERAGE = 2, /* sum divided by the number of ranks; integers truncate toward zero */
  COORDD_MIN = 3,
  COORDD_MAX = 4,
  COORDD_PRODUCT = 5
};

typedef int32_t coordd_device_kind_t;
enum {
  COORDD_HOST = 0,
  COORDD_CUDA = 1 /* device memory: over NCCL where all ranks have it, else through host memory */
};

/* A buffer under a name. Dense, row-major. The name is what ranks agree by: unique among the
 * tensors pending on a rank in one process set, equal on all ranks, 1 to 512 bytes. So are kind,
 * dtype, op and shape, except for the first dimension of allgather, gather and alltoall. The
 * buffers belong to the library from a successful submission until the work is complete, even if
 * the work is released before that; name and shape are copied, so that one structure, or one array
 * of them, serves for every step of a training. In an array of tensors, struct_size of the first is
 * the stride.
 *
 * 8 dimensions are enough for any tensor: only the first one, which gathers and scatters count, and
 * the number of elements mean something, so the last ones of a longer shape may be multiplied. A
 * longer name is to be shortened by the caller, by a hash of all of it, alike on all ranks.
 * coordd.torch does both by itself. */
typedef struct coordd_tensor {
  size_t struct_size;
  const char* name;
  const void* input;
  /* NULL: the library allocates the result (allgather, gather, alltoall, reducescatter);
   * coordd_work_result tells where. Equal to input: in place (allreduce, broadcast, reduce).
   * Otherwise they do not overlap. Not looked at where there is no result: by a send, and by reduce
   * and gather on every rank but the root. */
  void* output;
  int64_t output_capacity_bytes; /* of output, for allgather, gather, alltoall, reducescatter */
  const int64_t* shape; /* elements per dimension of the input; NULL with ndim 0: one element */
  int32_t ndim;         /* 0 to 8 */
  coordd_dtype_t dtype;
  coordd_device_kind_t device_kind; /* where both buffers are */
  int32_t device_index;             /* as this process counts its devices; ignored for the host */
  void* stream; /* cudaStream_t behind which the input is ready, and the output may be written;
                 * ignored for the host. The work is complete when the result is there for every
                 * stream; coordd_work_wait_on_stream does not wait for that. */
} coordd_tensor_t;
#define COORDD_TENSOR_INIT \
  { sizeof(coordd_tensor_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* How a collective runs. NULL stands for all defaults. */
typedef struct coordd_call_options {
  size_t struct_size;
  double timeout_seconds;  /* the work ends by then; 0: the worker's (10 minutes by default) */
  double prescale_factor;  /* multiplied in before a reduction; 0 stands for 1 */
  double postscale_factor; /* and after it; 0 stands for 1 */
  int32_t process_set;     /* which ranks take part; 0: all of them */
  int32_t lane;            /* reserved: 0 */
} coordd_call_options_t;
#define COORDD_CALL_OPTIONS_INIT \
  { sizeof(coordd_call_options_t), 0, 0, 0, 0, 0 }

/* --- the worker ---------------------------------------------------------------------------- */

/* This process as a member of a job. */
typedef struct coordd_worker coordd_worker_t;

/* A text that is NULL or empty, and a number that is 0, is taken from the environment variable
 * behind it, then from the default. */
typedef struct coordd_options {
  size_t struct_size;
  const char* coordinator; /* COORDD_ADDR: "host:port"; "auto", the default: found or started */
  const char* job;         /* COORDD_JOB_ID: "default" */
  const char* token;       /* the job's secret itself; wins over token_file */
  const char* token_file;  /* COORDD_TOKEN_FILE: a file that holds it */
  const char* tls_ca; /* COORDD_TLS_CA, COORDD_TLS_CERT, COORDD_TLS_KEY: PEM files, all or none */
  const char* tls_cert;
  const char* tls_key;
  const char*
      worker_id;        /* unique in the job; default: made from host name, process id and chance */
  const char* node_id;  /* COORDD_NODE_ID: ranks with equal ids share memory; default: found out */
  const char* topology; /* COORDD_TOPOLOGY: "aisle3/rack12", slowest network first */
  const char* metrics;  /* COORDD_METRICS: "host:port" to serve /metrics on, port 0 picks one */
  const char* transport;             /* COORDD_TRANSPORT: "auto", "mapped", "shm", "tcp" or "ucx" */
  int32_t min_workers;               /* COORDD_MIN_WORKERS, COORDD_SIZE, else the launcher's size */
  int32_t max_workers;               /* COORDD_MAX_WORKERS, likewise */
  double join_timeout_seconds;       /* COORDD_JOIN_TIMEOUT: 300; until enough workers are there */
  double collective_timeout_seconds; /* COORDD_TIMEOUT: 600; default deadline of every work */
  int32_t ignore_environment;  /* not 0: no variables are looked at; coordinator is required */
  int32_t has_launcher_rank;   /* not 0: launcher_rank and launcher_local_rank are given */
  int32_t launcher_rank;       /* COORDD_RANK, else the launcher's (COORDD_LAUNCHER); a hint */
  int32_t launcher_local_rank; /* COORDD_LOCAL_RANK: the same inside the node; -1: none */
  const char* launcher;        /* COORDD_LAUNCHER: whose variables count: "slurm", "none", ... */
  const char* port_range;      /* COORDD_PORT_RANGE: "20000-20099", what port 0 stands for */
  const char* on_failure;      /* COORDD_ON_FAILURE: what the loss of a member does: "end" the job,
                                * the default; "raise" an error; "continue" without it (see
                                * coordd_worker_on_generation). Equal on all members. */
  int32_t stack_signal; /* not 0: when others have waited for this rank for too long, its main
                         * thread gets this signal, whose handler writes the stacks of the
                         * program's threads, as text, to the end of stack_fd: coordd tells
                         * them to operators. Not while nothing handles the signal. */
  int32_t stack_fd;     /* a file of this process, which the library empties each time */
  double settling_window_seconds; /* COORDD_SETTLING_WINDOW: how long the first generation waits
                                   * for more than min_workers after the last one has come */
} coordd_options_t;
#define COORDD_OPTIONS_INIT                                                                        \
  {                                                                                                \
    sizeof(coordd_options_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0                                                                                    \
  }

/* What this process was told about itself before it is a member: by the options, by COORDD_*
 * variables, else by its launcher. */
typedef struct coordd_launch {
  size_t struct_size;
  const char* launcher; /* "slurm", "openmpi", ..., "none". Valid until the next call on this
                         * thread, as job is. */
  const char* job;      /* the name of the job that it would join */
  int32_t rank, size;   /* a hint, which coordd keeps where it fits the nodes; -1: not said */
  int32_t local_rank, local_size;
} coordd_launch_t;
#define COORDD_LAUNCH_INIT \
  { sizeof(coordd_launch_t), 0, 0, 0, 0, 0, 0 }

/* Needs no coordd. `options` may be NULL. INVALID_ARGUMENT names the option or the variable. */
COORDD_API coordd_status_t coordd_launch_place(const coordd_options_t* options,
                                               coordd_launch_t* launch);

/* Connects to coordd, joins the job, waits until a generation of workers has formed and connects to
 * them. `options` may be NULL: everything from the environment. On success *worker is to be given
 * to coordd_worker_destroy; otherwise it is NULL. Errors: INVALID_ARGUMENT names the option or the
 * variable; UNAVAILABLE; DEADLINE_EXCEEDED how many of how many workers came; UNAUTHENTICATED;
 * ALREADY_EXISTS the worker id; RESOURCE_EXHAUSTED the job is full; FAILED_PRECONDITION versions or
 * limits that do not fit the job. */
COORDD_API coordd_status_t coordd_worker_start(const coordd_options_t* options,
                                               coordd_worker_t** worker);

/* Completes what all ranks have agreed on, fails the rest with CANCELLED, says goodbye. The handle
 * stays valid; submissions fail from now on. Calling it again does nothing. */
COORDD_API coordd_status_t coordd_worker_shutdown(coordd_worker_t* worker, double timeout_seconds);

/* Shuts down (10 s at most) if that has not happened, and frees. Works may outlive their worker.
 * NULL is allowed. */
COORDD_API void coordd_worker_destroy(coordd_worker_t* worker);

/* A place in a generation. Ranks of one node are consecutive. */
typedef struct coordd_placement {
  size_t struct_size;
  int64_t generation; /* one agreed membership, from 1 */
  int32_t rank, size;
  int32_t local_rank, local_size; /* among the ranks that share this node's memory */
  int32_t cross_rank, cross_size; /* among the nodes that have a rank with this local_rank */
  int32_t nodes;                  /* that have ranks of the job */
  int32_t homogeneous;            /* 1: they all have as many */
} coordd_placement_t;
#define COORDD_PLACEMENT_INIT \
  { sizeof(coordd_placement_t), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Of the generation that the program knows: it changes in coordd_worker_await_generation and
 * coordd_worker_change_members only; with on_failure "continue" as soon as this rank has entered
 * another one. */
COORDD_API coordd_status_t coordd_worker_placement(const coordd_worker_t* worker,
                                                   coordd_placement_t* placement);

/* With on_failure "raise": what a program calls after COORDD_GENERATION_CHANGED. Waits,
 * `timeout_seconds` at most, until the survivors have formed the next generation and are connected,
 * and takes note of it: calls work again, and are about that one, whose ranks and size are in
 * *placement (NULL: not wanted). Process sets are gone with the old one. The program then goes back
 * to its last commit, as all others do. Returns at once while the generation is alive. Errors:
 * DEADLINE_EXCEEDED not yet; otherwise no generation follows, and the text says why. */
COORDD_API coordd_status_t coordd_worker_await_generation(coordd_worker_t* worker,
                                                          double timeout_seconds,
                                                          coordd_placement_t* placement);

/* With on_failure "continue": has `entered` called for every generation that follows from now on,
 * with this rank's place in it: before any of its results, on a thread of the library or on one
 * that is in a call of it. It must not block, wait for a work, throw or end the worker; it may
 * submit. `placement` is valid during the call. NULL: nothing is called any more once this has
 * returned (unless it is called within `entered`), for programs whose functions go before the
 * library does.
 *
 * A program of that mode need not notice a loss. Each result is the reduction over the members of
 * one generation, the same on all ranks, and coordd_work_result says of which and how many they
 * are; averages are divided by that number; the tensors of a group are of one generation. What the
 * loss has interrupted is executed again, among those who are left, from inputs that are intact
 * since no result is written to them before all ranks have it: this costs a copy of what is reduced
 * in place, and a barrier behind each batch. What names ranks cannot be executed again, because
 * they may be others now: broadcast, reduce, gather, alltoall, send, receive, and everything in
 * process sets but 0, fail with COORDD_GENERATION_CHANGED, and leave their output undefined. By
 * then coordd_worker_placement tells the new ranks, and the call can be made again, as it is on
 * every rank that has not got the result. Memory of a device, and comms, are for "end" and "raise"
 * only: UNIMPLEMENTED. So is memory that others have mapped: that of coordd_alloc is private. */
typedef void (*coordd_entered_t)(void* user, const coordd_placement_t* placement);
COORDD_API coordd_status_t coordd_worker_on_generation(coordd_worker_t* worker,
                                                       coordd_entered_t entered, void* user);

/* With on_failure "raise" or "continue": how many workers wait to become members, as far as this
 * rank knows; ranks may differ for a moment. */
COORDD_API int32_t coordd_worker_newcomers(const coordd_worker_t* worker);

/* Collective, with on_failure "raise": all ranks have come to a point at which others may join
 * them, have agreed to call this (by an allreduce of coordd_worker_newcomers, say) and have nothing
 * pending. Ends the generation and waits for the next one, as coordd_worker_await_generation does;
 * those who wait are in it, behind the old ranks, which keep their order. */
COORDD_API coordd_status_t coordd_worker_change_members(coordd_worker_t* worker,
                                                        double timeout_seconds,
                                                        coordd_placement_t* placement);

/* The same, also with on_failure "continue": `generation` is that of the result by which the ranks
 * have agreed (coordd_work_result), the same on all of them. If a loss has ended it since, on some
 * before they call and on others after, those who wait are not let in yet, and all return with the
 * generation that has followed. With "raise" it is not looked at. */
COORDD_API coordd_status_t coordd_worker_change_members_of(coordd_worker_t* worker,
                                                           int64_t generation,
                                                           double timeout_seconds,
                                                           coordd_placement_t* placement);

/* With on_failure "raise" or "continue": seconds that are left for this rank to leave, since an
 * operator (`coordctl drain`), its launcher or its own program has asked it to; 0 when they are
 * over, and it is being evicted; negative: it may stay, also when worker is NULL. Never blocks, on
 * any thread. A program asks at its commits: when one of the ranks is to leave (an allreduce of the
 * maximum, with coordd_worker_newcomers), that rank calls coordd_worker_shutdown and ends, and the
 * others call coordd_worker_change_members: no collective fails, and the job goes on. A rank that
 * has not left in time is evicted: its calls fail with COORDD_ABORTED and a text that says so. */
COORDD_API double coordd_worker_drain_seconds(const coordd_worker_t* worker);

/* With on_failure "raise" or "continue": this process has to end in `grace_seconds` (more than 0,
 * at most a week): its batch system or its machine has said so. coordd_worker_drain_seconds counts
 * from now on, and the goodbye of this rank is not the end of the job. `reason`: one phrase for the
 * events, e.g. "SIGTERM"; NULL: none. Returns at once, also while coordd is away; on any thread,
 * but not in a signal handler: wait for the signal on a thread (sigwait, signalfd). Asking again
 * counts when it is sooner. FAILED_PRECONDITION: with on_failure "end" nobody can leave without
 * ending the job; INVALID_ARGUMENT. */
COORDD_API coordd_status_t coordd_worker_ask_to_leave(coordd_worker_t* worker, double grace_seconds,
                                                      const char* reason);

/* Members of the placement one by one; -1 when worker is NULL. */
COORDD_API int32_t coordd_rank(const coordd_worker_t* worker);
COORDD_API int32_t coordd_size(const coordd_worker_t* worker);
COORDD_API int32_t coordd_local_rank(const coordd_worker_t* worker);
COORDD_API int32_t coordd_local_size(const coordd_worker_t* worker);
COORDD_API int32_t coordd_cross_rank(const coordd_worker_t* worker);
COORDD_API int32_t coordd_cross_size(const coordd_worker_t* worker);

/* COORDD_OK while the generation is alive; afterwards why it is not: the error of every further
 * submission (with on_failure "raise" until coordd_worker_await_generation). */
COORDD_API coordd_status_t coordd_worker_status(const coordd_worker_t* worker);

/* "host:port" where this worker serves /metrics; empty: it does not. Valid as long as the worker.
 */
COORDD_API const char* coordd_worker_metrics_address(const coordd_worker_t* worker);

/* A numeric address of this machine (IPv4 or IPv6, without brackets or port) by which the other
 * ranks of the generation reach what listens here, for a service that a program starts for all of
 * them: that by which this rank reaches coordd, or where that is loopback and ranks are on other
 * nodes, the address of the way out. Written to `address`, with a zero at its end; `capacity` of at
 * least COORDD_HOST_ADDRESS_BYTES suffices. INVALID_ARGUMENT. */
#define COORDD_HOST_ADDRESS_BYTES 64
COORDD_API coordd_status_t coordd_worker_host_address(const coordd_worker_t* worker, char* address,
                                                      size_t capacity);

/* Writes what this rank executes, and when, to a file that Perfetto opens: what
 * COORDD_TIMELINE=PATH does from the start. Rank 0 writes; the others only if the path has "{rank}"
 * in it, for which their number is put, and do nothing otherwise. `mark_cycles`: not 0: an event
 * where a repetition of what the program does begins. INVALID_ARGUMENT: the file cannot be written;
 * FAILED_PRECONDITION: a timeline is being written. */
COORDD_API coordd_status_t coordd_timeline_start(coordd_worker_t* worker, const char* path,
                                                 int32_t mark_cycles);

/* Ends it; so does the worker's end. Does nothing when there is none. UNAVAILABLE or
 * RESOURCE_EXHAUSTED: why the file is not complete. */
COORDD_API coordd_status_t coordd_timeline_stop(coordd_worker_t* worker);

/* --- works --------------------------------------------------------------------------------- */

/* The future of one submitted tensor. */
typedef struct coordd_work coordd_work_t;

/* Waits for its completion, `timeout_seconds` at most; negative: until its own deadline. Returns
 * the status of the collective, or DEADLINE_EXCEEDED with a text that says "still running", while
 * the work goes on and its buffers stay in use: coordd_work_poll tells the two apart (1: wait once
 * more, since it may have completed in between; that status is final). Errors of a
 * collective: INVALID_ARGUMENT, ABORTED, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE, INTERNAL. */
COORDD_API coordd_status_t coordd_work_wait(const coordd_work_t* work, double timeout_seconds);

/* For memory of a device: lets `stream` (a cudaStream_t of that device; NULL: the default stream)
 * wait for the result instead of this thread. Returns when the collective is on the device, where
 * it may still wait for its input and for other ranks: what is enqueued on the stream from then on
 * sees the result. The work may then be released, its name submitted again, and its buffers used by
 * that stream; coordd_work_result tells the result's place. What the host carries, and every tensor
 * in host memory, is complete when this returns. Timeout and statuses: as coordd_work_wait.
 *
 * A result that the library has allocated is memory that it uses again: it stays as it is for what
 * is enqueued on this stream before the work is released, so the stream has to exist until then.
 * Another stream that reads it waits by a call of its own, or is waited for by this one before the
 * work is released. (Of a work that no stream has waited for, the memory is not used again.)
 *
 * Should the generation end before the device is through, the stream is held in front of what
 * follows, so that nothing reads what an aborted collective has left, until any call of this
 * library has told the program: the next submission or wait returns the error. */
COORDD_API coordd_status_t coordd_work_wait_on_stream(const coordd_work_t* work, void* stream,
                                                      double timeout_seconds);

/* 1: complete; 0: not yet; -1: work is NULL. Never blocks. */
COORDD_API int32_t coordd_work_poll(const coordd_work_t* work);

/* The name that it was submitted under. Valid until the work is released. */
COORDD_API const char* coordd_work_name(const coordd_work_t* work);

typedef struct coordd_result {
  size_t struct_size;
  int64_t generation;             /* to which the result belongs */
  int32_t size;                   /* ranks that took part: what an average was divided by */
  int32_t ndim;                   /* of the output */
  const void* output;             /* the caller's buffer, else the library's, 64-byte aligned */
  int64_t output_bytes;           /* bytes of the result */
  const int64_t* shape;           /* ndim of them */
  const int64_t* received_splits; /* alltoall: rows that came from each rank; else NULL */
  int32_t num_received_splits;
} coordd_result_t;
#define COORDD_RESULT_INIT \
  { sizeof(coordd_result_t), 0, 0, 0, 0, 0, 0, 0, 0 }

/* What a successful work holds; the pointers are valid until it is released. FAILED_PRECONDITION:
 * it is still running, and no stream waits for it. Otherwise the error that it ended with. */
COORDD_API coordd_status_t coordd_work_result(const coordd_work_t* work, coordd_result_t* result);

/* Calls `done` once when the work is complete: on a thread of the library, or at once on this one
 * when it already is. `done` must not block, wait for another work, throw or destroy the worker; it
 * may submit and may release the work. `message` is empty on success and valid during the call. */
typedef void (*coordd_done_t)(void* user, coordd_status_t status, const char* message);
COORDD_API coordd_status_t coordd_work_on_complete(coordd_work_t* work, coordd_done_t done,
                                                   void* user);

/* Forgets the handle and frees a result that the library allocated. A work that is still running
 * goes on. NULL is allowed. */
COORDD_API void coordd_work_release(coordd_work_t* work);

/* --- what is in this build ------------------------------------------------------------------- */

/* A line for each component, "[X] UCX 1.13.1 (built), 1.13.1 (loaded)" or "[ ] NCCL: why not"; with
 * `json` not 0 a JSON array of objects. Valid until the next call on this thread. */
COORDD_API const char* coordd_check_build(int32_t json);

#ifdef __cplusplus
}
#endif

#include "collectives.h"  /* process sets and collectives */
#include "comm.h"         /* collectives without names */
#include "leaving.h"      /* ends of programs */
#include "memory.h"       /* memory that takes part without a copy */
#include "process_sets.h" /* process sets that their members make alone */
#include "store.h"        /* small values for the other members */

#endif /* COORDD_COORDD_H_ */
