/* coordd: memory for collectives. A part of coordd.h, which includes it: include that. */
#ifndef COORDD_MEMORY_H_
#define COORDD_MEMORY_H_

#ifndef COORDD_COORDD_H_
#error "include coordd/coordd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- memory ----------------------------------------------------------------------------------
 *
 * Any memory of the process can be given to a collective. What lies in memory of coordd_alloc takes
 * part without a copy where the ranks of a node map each other's memory (COORDD_TRANSPORT=auto,
 * which is the default, or mapped): they read inputs and write results in place, which makes large
 * reductions and broadcasts two to three times as fast.
 *
 *     void* memory = NULL;
 *     coordd_alloc(worker, 4 * count, &memory);
 *     coordd_comm_allreduce(comm, memory, memory, count, COORDD_FLOAT32, COORDD_SUM);
 *     coordd_free(worker, memory);
 *
 * It takes part like that in the generation in which it was allocated. With on_failure "raise",
 * coordd_worker_await_generation and coordd_worker_change_members make it private memory of this
 * process, with the same address and contents, since a rank that has not heard of the end yet may
 * still be writing to it; for as long as they run nothing else may write to it. Until then what a
 * failed collective was to fill is undefined. Allocate anew to go on without copies. With
 * on_failure "continue", and without neighbours, mapped memory or room in it, it is private from
 * the start. Children of a fork() do not have it: they end with SIGSEGV when they touch it.
 * mlockall(MCL_CURRENT) without MCL_ONFAULT makes pages of all that could be allocated. */

/* `size_bytes` (at least 1) of memory: 64-byte aligned, all zero, valid until coordd_free or the
 * worker's end (coordd_worker_destroy). Pages are taken as they are touched. INVALID_ARGUMENT;
 * RESOURCE_EXHAUSTED; the generation's end, as coordd_worker_status. *memory is NULL then. */
COORDD_API coordd_status_t coordd_alloc(coordd_worker_t* worker, int64_t size_bytes, void** memory);

/* No collective that is pending uses it. NULL is allowed. INVALID_ARGUMENT: it is not what
 * coordd_alloc has returned for this worker. */
COORDD_API coordd_status_t coordd_free(coordd_worker_t* worker, void* memory);

/* Whether these bytes take part without a copy: COORDD_OK if they lie in one piece of memory of
 * coordd_alloc that is mapped. INVALID_ARGUMENT: they do not; other processes cannot map pages that
 * are private to this one. FAILED_PRECONDITION: they do, but it is private, and why. Nothing has to
 * be undone. */
COORDD_API coordd_status_t coordd_register(coordd_worker_t* worker, const void* memory,
                                           int64_t size_bytes);

#ifdef __cplusplus
}
#endif

#endif /* COORDD_MEMORY_H_ */
