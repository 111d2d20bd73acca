/* coordd: process sets and collectives. A part of coordd.h, which includes it: include that. */
#ifndef COORDD_COLLECTIVES_H_
#define COORDD_COLLECTIVES_H_

#ifndef COORDD_COORDD_H_
#error "include coordd/coordd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- process sets ----------------------------------------------------------------------------
 *
 * A process set is some of the ranks, which run collectives of their own: coordd_call_options.
 * process_set says in which one. Tensor names are unique per set, and sets never wait for each
 * other. Set 0 has all ranks.
 *
 * Where another generation follows (on_failure raise), a set that was added is there, too, with its
 * number and with those of its ranks that are left, numbered as in that generation. A set of which
 * none is left is not there any more, and its number never comes again. Newcomers are in no set but
 * 0, and take part when sets are made and ended. What was pending in a set fails, as everywhere. */

/* Makes a process set of the given ranks, in any order, each once. A collective of the whole job:
 * every rank calls it with the same ranks, also one that is none of them, and calls of several sets
 * come in the same order everywhere. Blocks until the last rank has called, `timeout_seconds` at
 * most (0: the worker's). *process_set receives the number of the set, the same everywhere. Errors:
 * INVALID_ARGUMENT no ranks of the job, or other ranks asked for other ones; ALREADY_EXISTS these
 * ranks have a set, whose number is in the text; DEADLINE_EXCEEDED who has not called; the
 * generation's end, as coordd_worker_status. */
COORDD_API coordd_status_t coordd_process_set_add(coordd_worker_t* worker, const int32_t* ranks,
                                                  size_t count, double timeout_seconds,
                                                  int32_t* process_set);

/* Ends a process set, in the same way: every rank calls it. What is planned completes.
 * FAILED_PRECONDITION: a tensor of the set is pending, because not all of its ranks have submitted
 * it; the set stays. INVALID_ARGUMENT: there is no such set, or it is 0. */
COORDD_API coordd_status_t coordd_process_set_remove(coordd_worker_t* worker, int32_t process_set,
                                                     double timeout_seconds);

/* The ranks of a set in their order, as this rank knows them; of 0 all ranks. *count receives how
 * many there are, also when that is more than `capacity` (OUT_OF_RANGE). INVALID_ARGUMENT: there is
 * no such set. */
COORDD_API coordd_status_t coordd_process_set_ranks(coordd_worker_t* worker, int32_t process_set,
                                                    int32_t* ranks, size_t capacity, size_t* count);

/* The numbers of the sets that there are, in order and without 0, as this rank knows them. *count
 * as above. *found (may be NULL): the highest number that a set had had when this worker became a
 * member; 0: there had been none. */
COORDD_API coordd_status_t coordd_process_set_list(coordd_worker_t* worker, int32_t* process_sets,
                                                   size_t capacity, size_t* count, int32_t* found);

/* --- collectives ---------------------------------------------------------------------------
 *
 * Each comes twice. The _async form returns as soon as the tensor is queued; *work is then to be
 * given to coordd_work_release. The other form also waits; its `work` may be NULL, otherwise it
 * receives the completed work of a success, for coordd_work_result. Statuses of a submission:
 * INVALID_ARGUMENT a bad name, shape, dtype, buffer or rank, or a process set that does not exist
 * or does not contain this rank; ALREADY_EXISTS; RESOURCE_EXHAUSTED too many tensors are
 * pending here; UNIMPLEMENTED a device tensor where there is no CUDA; FAILED_PRECONDITION shut
 * down, or joined; the generation's end, as coordd_worker_status. On failure nothing was submitted
 * and *work is NULL.
 *
 * "All ranks" are those of the process set of the options; ranks that a call names (a root, a peer)
 * are ranks of the job, also in a process set. */

/* Reduces element by element over all ranks; everyone gets the result. Output: as the input. An
 * average is the sum divided by the number of ranks, also when some of them have joined. */
COORDD_API coordd_status_t coordd_allreduce_async(coordd_worker_t* worker,
                                                  const coordd_tensor_t* tensor, coordd_op_t op,
                                                  const coordd_call_options_t* options,
                                                  coordd_work_t** work);
COORDD_API coordd_status_t coordd_allreduce(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                            coordd_op_t op, const coordd_call_options_t* options,
                                            coordd_work_t** work);
/* coordd_allreduce for a caller that has to look after other things from time to time, as an
 * interpreter after its signals: one call for a submission, a wait of `timeout_seconds` at most and
 * a release. COORDD_OK: it is complete, *work is NULL. Otherwise *work is NULL when nothing was
 * submitted; it is the work, to be released, when that has failed, with the status returned, or is
 * running, perhaps until a moment ago: DEADLINE_EXCEEDED; then coordd_work_wait tells its status.
 */
COORDD_API coordd_status_t coordd_allreduce_for(coordd_worker_t* worker,
                                                const coordd_tensor_t* tensor, coordd_op_t op,
                                                const coordd_call_options_t* options,
                                                double timeout_seconds, coordd_work_t** work);

/* All tensors of the group in one generation, or none: one bad tensor on one rank fails all of them
 * on all ranks. `name` must be equal on all ranks. `works` has room for `count` handles, 1 to
 * 65536.
 */
COORDD_API coordd_status_t coordd_grouped_allreduce_async(coordd_worker_t* worker, const char* name,
                                                          const coordd_tensor_t* tensors,
                                                          size_t count, coordd_op_t op,
                                                          const coordd_call_options_t* options,
                                                          coordd_work_t** works);
/* `works` may be NULL. */
COORDD_API coordd_status_t coordd_grouped_allreduce(coordd_worker_t* worker, const char* name,
                                                    const coordd_tensor_t* tensors, size_t count,
                                                    coordd_op_t op,
                                                    const coordd_call_options_t* options,
                                                    coordd_work_t** works);

/* Concatenates the tensors of all ranks along the first dimension, in rank order; the first
 * dimension may differ between ranks. */
COORDD_API coordd_status_t coordd_allgather_async(coordd_worker_t* worker,
                                                  const coordd_tensor_t* tensor,
                                                  const coordd_call_options_t* options,
                                                  coordd_work_t** work);
COORDD_API coordd_status_t coordd_allgather(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                            const coordd_call_options_t* options,
                                            coordd_work_t** work);
COORDD_API coordd_status_t coordd_grouped_allgather_async(coordd_worker_t* worker, const char* name,
                                                          const coordd_tensor_t* tensors,
                                                          size_t count,
                                                          const coordd_call_options_t* options,
                                                          coordd_work_t** works);
COORDD_API coordd_status_t coordd_grouped_allgather(coordd_worker_t* worker, const char* name,
                                                    const coordd_tensor_t* tensors, size_t count,
                                                    const coordd_call_options_t* options,
                                                    coordd_work_t** works);

/* Everyone gets the value of `root`. On the root the input is read; on the others only the output
 * is used (the input may be NULL). */
COORDD_API coordd_status_t coordd_broadcast_async(coordd_worker_t* worker,
                                                  const coordd_tensor_t* tensor, int32_t root,
                                                  const coordd_call_options_t* options,
                                                  coordd_work_t** work);
COORDD_API coordd_status_t coordd_broadcast(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                            int32_t root, const coordd_call_options_t* options,
                                            coordd_work_t** work);

/* Reduces, then gives each rank its slice of the first dimension; lower ranks get the extra row of
 * an uneven split. */
COORDD_API coordd_status_t coordd_reducescatter_async(coordd_worker_t* worker,
                                                      const coordd_tensor_t* tensor, coordd_op_t op,
                                                      const coordd_call_options_t* options,
                                                      coordd_work_t** work);
COORDD_API coordd_status_t coordd_reducescatter(coordd_worker_t* worker,
                                                const coordd_tensor_t* tensor, coordd_op_t op,
                                                const coordd_call_options_t* options,
                                                coordd_work_t** work);

/* In groups, as coordd_grouped_allreduce. */
COORDD_API coordd_status_t coordd_grouped_reducescatter_async(
    coordd_worker_t* worker, const char* name, const coordd_tensor_t* tensors, size_t count,
    coordd_op_t op, const coordd_call_options_t* options, coordd_work_t** works);
COORDD_API coordd_status_t coordd_grouped_reducescatter(coordd_worker_t* worker, const char* name,
                                                        const coordd_tensor_t* tensors,
                                                        size_t count, coordd_op_t op,
                                                        const coordd_call_options_t* options,
                                                        coordd_work_t** works);

/* Reduces as allreduce; only `root` gets the result. On the others the output is not looked at and
 * the result is empty (output_bytes 0). */
COORDD_API coordd_status_t coordd_reduce_async(coordd_worker_t* worker,
                                               const coordd_tensor_t* tensor, int32_t root,
                                               coordd_op_t op, const coordd_call_options_t* options,
                                               coordd_work_t** work);
COORDD_API coordd_status_t coordd_reduce(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                         int32_t root, coordd_op_t op,
                                         const coordd_call_options_t* options,
                                         coordd_work_t** work);

/* Concatenates as allgather; only `root` gets the result. The first dimension may differ between
 * ranks. */
COORDD_API coordd_status_t coordd_gather_async(coordd_worker_t* worker,
                                               const coordd_tensor_t* tensor, int32_t root,
                                               const coordd_call_options_t* options,
                                               coordd_work_t** work);
COORDD_API coordd_status_t coordd_gather(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                         int32_t root, const coordd_call_options_t* options,
                                         coordd_work_t** work);

/* From this rank's input to the output of rank `destination`, which calls coordd_receive under the
 * same name, with the same dtype and shape, and with this rank as `source`. Between two ranks,
 * tensors with different names do not wait for each other's order. Not in a process set: the two
 * are one. */
COORDD_API coordd_status_t coordd_send_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                             int32_t destination,
                                             const coordd_call_options_t* options,
                                             coordd_work_t** work);
COORDD_API coordd_status_t coordd_send(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                       int32_t destination, const coordd_call_options_t* options,
                                       coordd_work_t** work);
COORDD_API coordd_status_t coordd_receive_async(coordd_worker_t* worker,
                                                const coordd_tensor_t* tensor, int32_t source,
                                                const coordd_call_options_t* options,
                                                coordd_work_t** work);
COORDD_API coordd_status_t coordd_receive(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                          int32_t source, const coordd_call_options_t* options,
                                          coordd_work_t** work);

/* Sends splits[i] rows of the first dimension to the i-th rank, and concatenates what comes from
 * each in their order. `splits`: one per rank, adding up to shape[0]; NULL: equal parts. */
COORDD_API coordd_status_t coordd_alltoall_async(coordd_worker_t* worker,
                                                 const coordd_tensor_t* tensor,
                                                 const int64_t* splits, size_t num_splits,
                                                 const coordd_call_options_t* options,
                                                 coordd_work_t** work);
COORDD_API coordd_status_t coordd_alltoall(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                           const int64_t* splits, size_t num_splits,
                                           const coordd_call_options_t* options,
                                           coordd_work_t** work);

/* Completes once all ranks have called it. `name` NULL: the library counts, so that the n-th
 * unnamed barrier of one rank in a process set meets the n-th of the others; 64 of them may be
 * under way. */
COORDD_API coordd_status_t coordd_barrier_async(coordd_worker_t* worker, const char* name,
                                                const coordd_call_options_t* options,
                                                coordd_work_t** work);
COORDD_API coordd_status_t coordd_barrier(coordd_worker_t* worker, const char* name,
                                          const coordd_call_options_t* options);

/* For a layer that names its program's calls by counting them, as coordd.torch does, and has
 * refused one before it was submitted: the other ranks make the n-th call of this name and would
 * wait for this rank, or meet its next one. Their call fails at once with INVALID_ARGUMENT and a
 * sentence that names this rank and `why` (the first 1024 bytes), and so do these works. If all
 * ranks refuse the call nothing is left of it. What the others have launched by a schedule already
 * cannot be taken back: the generation then ends with that sentence. Of `tensors` only the names
 * count; `group` NULL: one tensor, alone. */
COORDD_API coordd_status_t coordd_refuse_async(coordd_worker_t* worker, const char* group,
                                               const coordd_tensor_t* tensors, size_t count,
                                               const char* why,
                                               const coordd_call_options_t* options,
                                               coordd_work_t** works);

/* This rank has no more data: ranks with uneven inputs call it once each, when they are through.
 * Until the last rank has joined, a rank that has joined counts as ready for everything in every
 * process set that it is in: it contributes nothing (0 to a sum, no rows to a gather, and so on)
 * and gets nothing. What needs its data fails on all ranks: a broadcast, reduce or gather whose
 * root has joined, a send to it or a receive from it. It may submit nothing itself. All joins end
 * together; *last_rank (may be NULL) is the rank that joined last, which is also the result of the
 * work, one int32. Only of all ranks: options->process_set is 0, and no process set can be added or
 * removed meanwhile. A join has no deadline (a week) unless options->timeout_seconds says so: it
 * ends when nothing comes from those who have not joined (coordd's --stall-abort). */
COORDD_API coordd_status_t coordd_join_async(coordd_worker_t* worker,
                                             const coordd_call_options_t* options,
                                             coordd_work_t** work);
COORDD_API coordd_status_t coordd_join(coordd_worker_t* worker,
                                       const coordd_call_options_t* options, int32_t* last_rank);

/* --- CUDA graphs -----------------------------------------------------------------------------
 *
 * A tensor whose stream is being captured into a CUDA graph becomes a part of the graph: NCCL's
 * call, on that stream, for each launch. Nothing is negotiated then, so a process set is prepared
 * first, and the program sees to what coordd would: all ranks of the set capture the same calls, of
 * the same shapes, in the same order, and launch their graphs in the same order. Names do not
 * matter there.
 *
 * allreduce, broadcast, allgather and reducescatter, alone or grouped, in place or not. Every
 * tensor has an output; an allgather's first dimensions are equal, a reducescatter's is a multiple
 * of the number of ranks, without a prescale factor. What NCCL does not reduce (16-bit integers,
 * averages of integers) and other collectives are refused with UNIMPLEMENTED, and a set that is not
 * prepared with FAILED_PRECONDITION. The work is complete at once: its result is there in the
 * stream's order with each launch. The buffers belong to the graph.
 *
 * Beside what is not captured: a stream that launches a graph comes behind the results that it
 * waits for (coordd_work_wait_on_stream), and what is submitted on that stream afterwards comes
 * behind the graph. Keep to that: a graph and an ordinary collective that can run at the same time
 * can wait for each other.
 *
 * The end of the generation, a lost rank's for instance, ends what is captured: launches no longer
 * wait for anybody, streams are held behind each captured call until a call of this library has
 * told the program, as coordd_work_wait_on_stream says, and from then on launches of such a graph
 * leave bytes of 0xff, not a number, in its outputs. Prepare the set again, and capture again. The
 * communicator is freed when its graphs are destroyed. Before coordd_worker_shutdown the device is
 * to be through with all launches.
 *
 * Both are collective: every rank of the set calls them, in one order. `timeout_seconds`: for the
 * others to come; 0: the worker's. */

/* Makes a communicator for graphs on device `device_index`, once in each generation; else nothing.
 * UNIMPLEMENTED: why there is no NCCL between these ranks; INVALID_ARGUMENT: not the device of this
 * rank's other tensors, no such set; DEADLINE_EXCEEDED; UNAVAILABLE: NCCL's error; the generation's
 * end. */
COORDD_API coordd_status_t coordd_graphs_prepare(coordd_worker_t* worker, int32_t process_set,
                                                 int32_t device_index, double timeout_seconds);

/* After the captures, before the first launch: whether all ranks have captured the same since the
 * set was prepared. INVALID_ARGUMENT, on all of them: which call of which rank differs, where the
 * launches would hang or give garbage. FAILED_PRECONDITION: not prepared; as above. */
COORDD_API coordd_status_t coordd_graphs_check(coordd_worker_t* worker, int32_t process_set,
                                               double timeout_seconds);

#ifdef __cplusplus
}
#endif

#endif /* COORDD_COLLECTIVES_H_ */
