/* coordd: process sets that their members make alone. A part of coordd.h, which includes it:
 * include that. */
#ifndef COORDD_PROCESS_SETS_H_
#define COORDD_PROCESS_SETS_H_

#ifndef COORDD_COORDD_H_
#error "include coordd/coordd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A process set as coordd_process_set_add makes one (collectives.h), but by its members alone: the
 * other ranks neither call anything nor wait. Every member calls it with the same `name`, 1 to 256
 * bytes of UTF-8, and the same `ranks`, this one among them; it blocks until the last one has,
 * `timeout_seconds` at most (0: as a collective). It has an order with no other call, so that
 * members may make several at a time, on several threads, and it may have the ranks of another set.
 *
 *     const int32_t pair[] = {0, 1};
 *     int32_t set = 0;
 *     if (rank < 2) coordd_process_set_add_members(worker, "stage 0", pair, 2, 0, &set);
 *
 * The name is the set's until its members have given it to coordd_process_set_remove, which they
 * then call alone, too. The set ends with its generation: where another one follows, its members
 * make it anew, like a comm.
 *
 * *process_set receives its number; 0 on failure. Errors: INVALID_ARGUMENT ranks, a name, or other
 * ranks under this name than another member has (it names both); ALREADY_EXISTS a set has the name,
 * or another thread of this rank asks for it; FAILED_PRECONDITION a member has no more data
 * (coordd_join); DEADLINE_EXCEEDED who has not asked; CANCELLED another member has given up;
 * UNIMPLEMENTED coordd is of an older release; the end of the generation, as any collective. */
COORDD_API coordd_status_t coordd_process_set_add_members(coordd_worker_t* worker, const char* name,
                                                          const int32_t* ranks, size_t count,
                                                          double timeout_seconds,
                                                          int32_t* process_set);

#ifdef __cplusplus
}
#endif

#endif /* COORDD_PROCESS_SETS_H_ */
