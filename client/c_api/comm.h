/* coordd: comms. A part of coordd.h, which includes it: include that. */
#ifndef COORDD_COMM_H_
#define COORDD_COMM_H_

#ifndef COORDD_COORDD_H_
#error "include coordd/coordd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- comms -----------------------------------------------------------------------------------
 *
 * A comm is the members of a process set with an order of their own: collectives without names,
 * which every member calls in the same order, and which run at once on the calling thread. Nothing
 * is negotiated: for a program that has one order anyway this is the shortest way, a few hundred
 * nanoseconds for a few bytes among processes of one node that share mapped memory
 * (COORDD_TRANSPORT). Named collectives go on beside it, without an order between the two.
 *
 *     coordd_comm_t* comm = NULL;
 *     coordd_comm_create(worker, 0, "training", 0, &comm);
 *     coordd_comm_allreduce(comm, gradient, gradient, 256, COORDD_FLOAT32, COORDD_SUM);
 *     coordd_comm_free(comm);
 *
 * Host memory only. One thread at a time makes calls of a comm (FAILED_PRECONDITION otherwise), and
 * they run in that order, one after the other; different comms do not wait for each other. Members
 * that call different collectives, or with another root, operator, dtype or size, hear so, both of
 * them (FAILED_PRECONDITION), where they share mapped memory; between nodes, and without, they get
 * an error, a deadline, or a wrong result: nobody compares them there.
 *
 * Every call returns when its output is complete and nobody reads its input any more, or with
 * INVALID_ARGUMENT (nothing has been done, the comm can still be used), DEADLINE_EXCEEDED (who was
 * not there), FAILED_PRECONDITION (a member calls something else, an earlier call failed, or this
 * is the child of a fork), or the end of the generation, as coordd_worker_status. After any error
 * but the first the comm is over, like the generation of a lost member: free it, and make another
 * one, after coordd_worker_await_generation where a generation follows.
 *
 * A member that leaves (coordd_worker_shutdown, coordd_worker_destroy) ends the generation, but not
 * a call in which it has done its part before: the others come to the end of it, also those that
 * make it later. What needs more of it fails, and says who has left. Between nodes, and without
 * mapped memory, that holds for a second.
 *
 * Every collective comes in three forms.
 *
 * coordd_comm_allreduce waits.
 *
 * coordd_comm_allreduce_async does not: *work is to be waited for and released, like that of any
 * collective. It runs in the order of the comm, on a thread of the library or on that of whoever
 * waits for it. The buffers stay in use until it is complete. Its callback
 * (coordd_work_on_complete) may make calls of the comm, and wait for them. RESOURCE_EXHAUSTED:
 * 1,048,576 calls of the comm have not ended. On failure *work is NULL.
 *
 * coordd_comm_allreduce_for waits for `timeout_seconds` at most, for a caller that has to look
 * after other things from time to time, as an interpreter after its signals. COORDD_OK: it is
 * complete, *work is NULL. Otherwise *work is NULL when it has failed, with the status returned; it
 * is the work, to be released, when it goes on, perhaps until a moment ago: DEADLINE_EXCEEDED; then
 * coordd_work_wait tells its status.
 *
 * In their result (coordd_work_result) the shape is one number, the elements of the output. */
typedef struct coordd_comm coordd_comm_t;

/* A collective of the process set (0: all ranks): every member calls it with the same name, 1 to
 * 256 bytes. `timeout_seconds`: of this call, and of each call of the comm; 0: the worker's. On
 * success *comm is to be given to coordd_comm_free, otherwise it is NULL. Errors: INVALID_ARGUMENT;
 * ALREADY_EXISTS this rank is making one of this name; RESOURCE_EXHAUSTED 1,024 comms and other
 * lanes at a time, 4,096 comms in one generation; FAILED_PRECONDITION a member has no more data
 * (coordd_join); UNIMPLEMENTED with on_failure "continue"; as any collective. */
COORDD_API coordd_status_t coordd_comm_create(coordd_worker_t* worker, int32_t process_set,
                                              const char* name, double timeout_seconds,
                                              coordd_comm_t** comm);

/* Local, not a collective. What was started and has not begun ends with CANCELLED, what has begun
 * is waited for. Not from a callback of its works, and the last call of it. It may follow
 * coordd_worker_destroy. NULL is allowed. */
COORDD_API void coordd_comm_free(coordd_comm_t* comm);

/* This process among the members, which are counted from 0 in the order of their ranks, and how
 * many they are. -1: NULL. */
COORDD_API int32_t coordd_comm_rank(const coordd_comm_t* comm);
COORDD_API int32_t coordd_comm_size(const coordd_comm_t* comm);

/* `count` elements of `input`, combined element by element into `count` of `output` on all members,
 * the same bits everywhere. Equal pointers: in place; otherwise they do not overlap. */
COORDD_API coordd_status_t coordd_comm_allreduce(coordd_comm_t* comm, const void* input,
                                                 void* output, int64_t count, coordd_dtype_t dtype,
                                                 coordd_op_t op);
COORDD_API coordd_status_t coordd_comm_allreduce_async(coordd_comm_t* comm, const void* input,
                                                       void* output, int64_t count,
                                                       coordd_dtype_t dtype, coordd_op_t op,
                                                       coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_allreduce_for(coordd_comm_t* comm, const void* input,
                                                     void* output, int64_t count,
                                                     coordd_dtype_t dtype, coordd_op_t op,
                                                     double timeout_seconds, coordd_work_t** work);

/* `input` has a block of `count` elements for each member; `output`, of `count` elements, receives
 * this member's, combined. In place: `output` is this member's block of `input`. */
COORDD_API coordd_status_t coordd_comm_reducescatter(coordd_comm_t* comm, const void* input,
                                                     void* output, int64_t count,
                                                     coordd_dtype_t dtype, coordd_op_t op);
COORDD_API coordd_status_t coordd_comm_reducescatter_async(coordd_comm_t* comm, const void* input,
                                                           void* output, int64_t count,
                                                           coordd_dtype_t dtype, coordd_op_t op,
                                                           coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_reducescatter_for(coordd_comm_t* comm, const void* input,
                                                         void* output, int64_t count,
                                                         coordd_dtype_t dtype, coordd_op_t op,
                                                         double timeout_seconds,
                                                         coordd_work_t** work);

/* `count` elements of `buffer` on member `root`, to `buffer` on all others. */
COORDD_API coordd_status_t coordd_comm_broadcast(coordd_comm_t* comm, void* buffer, int64_t count,
                                                 coordd_dtype_t dtype, int32_t root);
COORDD_API coordd_status_t coordd_comm_broadcast_async(coordd_comm_t* comm, void* buffer,
                                                       int64_t count, coordd_dtype_t dtype,
                                                       int32_t root, coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_broadcast_for(coordd_comm_t* comm, void* buffer,
                                                     int64_t count, coordd_dtype_t dtype,
                                                     int32_t root, double timeout_seconds,
                                                     coordd_work_t** work);

/* `count` elements of each member, in their order, to `output`, which has room for count elements
 * of each. In place: `input` is this member's block of `output`. */
COORDD_API coordd_status_t coordd_comm_allgather(coordd_comm_t* comm, const void* input,
                                                 void* output, int64_t count, coordd_dtype_t dtype);
COORDD_API coordd_status_t coordd_comm_allgather_async(coordd_comm_t* comm, const void* input,
                                                       void* output, int64_t count,
                                                       coordd_dtype_t dtype, coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_allgather_for(coordd_comm_t* comm, const void* input,
                                                     void* output, int64_t count,
                                                     coordd_dtype_t dtype, double timeout_seconds,
                                                     coordd_work_t** work);

/* Block i of `input`, `count` elements, to member i; from it to block i of `output`. Not in
 * place. */
COORDD_API coordd_status_t coordd_comm_alltoall(coordd_comm_t* comm, const void* input,
                                                void* output, int64_t count, coordd_dtype_t dtype);
COORDD_API coordd_status_t coordd_comm_alltoall_async(coordd_comm_t* comm, const void* input,
                                                      void* output, int64_t count,
                                                      coordd_dtype_t dtype, coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_alltoall_for(coordd_comm_t* comm, const void* input,
                                                    void* output, int64_t count,
                                                    coordd_dtype_t dtype, double timeout_seconds,
                                                    coordd_work_t** work);

/* The same with blocks of any sizes, one behind the other: `input_counts[i]` elements to member i,
 * `output_counts[i]` from it, which has to send as many; both have a number for each member, and
 * are read before the call returns. It is another call than coordd_comm_alltoall: all members make
 * this one, whatever their counts are. Where they share mapped memory, a member that is sent
 * another number than it expects gets INVALID_ARGUMENT, with both, and an output that is not to be
 * used; the others get theirs, and the comm can still be used. */
COORDD_API coordd_status_t coordd_comm_alltoallv(coordd_comm_t* comm, const void* input,
                                                 const int64_t* input_counts, void* output,
                                                 const int64_t* output_counts,
                                                 coordd_dtype_t dtype);
COORDD_API coordd_status_t coordd_comm_alltoallv_async(coordd_comm_t* comm, const void* input,
                                                       const int64_t* input_counts, void* output,
                                                       const int64_t* output_counts,
                                                       coordd_dtype_t dtype, coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_alltoallv_for(coordd_comm_t* comm, const void* input,
                                                     const int64_t* input_counts, void* output,
                                                     const int64_t* output_counts,
                                                     coordd_dtype_t dtype, double timeout_seconds,
                                                     coordd_work_t** work);

/* Complete once all members have called it. */
COORDD_API coordd_status_t coordd_comm_barrier(coordd_comm_t* comm);
COORDD_API coordd_status_t coordd_comm_barrier_async(coordd_comm_t* comm, coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_barrier_for(coordd_comm_t* comm, double timeout_seconds,
                                                   coordd_work_t** work);

/* --- messages between two members --------------------------------------------------------------
 *
 * `count` elements from this member to member `destination`, which receives as many of the same
 * dtype: otherwise both hear so (INVALID_ARGUMENT, with both counts and dtypes). Messages of a comm
 * from one member with one tag are received in the order in which they were sent; otherwise they do
 * not wait for each other, nor for the collectives of the comm. Any thread may make these calls.
 * `source`: a member, or COORDD_ANY_SOURCE, which takes what comes first.
 *
 * *work is to be waited for and released, like that of any collective; the buffer stays in use
 * until it is complete. It has no deadline of its own: coordd_work_wait has one. A small message
 * may be complete before it is received. The result of a receive (coordd_work_result) has as its
 * one received split the member that has sent. Errors: INVALID_ARGUMENT; the end of the generation,
 * as coordd_worker_status; UNIMPLEMENTED between ranks whose sum is 65,536 or more. */
#define COORDD_ANY_SOURCE (-1)
COORDD_API coordd_status_t coordd_comm_send_async(coordd_comm_t* comm, const void* buffer,
                                                  int64_t count, coordd_dtype_t dtype,
                                                  int32_t destination, int64_t tag,
                                                  coordd_work_t** work);
COORDD_API coordd_status_t coordd_comm_receive_async(coordd_comm_t* comm, void* buffer,
                                                     int64_t count, coordd_dtype_t dtype,
                                                     int32_t source, int64_t tag,
                                                     coordd_work_t** work);

/* For a receive of `comm` that its program waits for no longer: its timeout is over. When nothing
 * has come for it, it ends with CANCELLED at once, and does not take a message that comes later;
 * otherwise it ends as it would have: coordd_work_poll and coordd_work_wait tell. A send cannot be
 * withdrawn: the message is there for whoever receives it. The work is to be released all the
 * same. */
COORDD_API coordd_status_t coordd_comm_withdraw(coordd_comm_t* comm, const coordd_work_t* receive);

#ifdef __cplusplus
}
#endif

#endif /* COORDD_COMM_H_ */
