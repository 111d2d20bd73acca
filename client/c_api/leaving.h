/* coordd: ends of programs. A part of coordd.h, which includes it: include that. */
#ifndef COORDD_LEAVING_H_
#define COORDD_LEAVING_H_

#ifndef COORDD_COORDD_H_
#error "include coordd/coordd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* coordd_worker_shutdown is a goodbye: the program has come to its end. coordd_worker_destroy says
 * it, too, unless a C++ exception is unwinding the stack: that is a failure, as below. */

/* Instead of a goodbye: the program ends by an error. `what` is one sentence, such as
 * "std::runtime_error: no such file: train.csv"; it stands in the errors of the other ranks, for
 * which this one is lost as if its process had been killed, and in what coordd and coordrun say.
 * What is executing here is aborted. Otherwise as coordd_worker_shutdown, also in that it does
 * nothing when that has been called. */
COORDD_API coordd_status_t coordd_worker_fail(coordd_worker_t* worker, const char* what,
                                              double timeout_seconds);

/* For a program that is about to end, of which it is not known yet whether it ends well: completes
 * what all ranks have agreed on and fails the rest, as coordd_worker_shutdown does, but the goodbye
 * waits. It is said when the process ends by exit(0) or by a return of 0 from main. A process that
 * ends with another status has failed, and so has one that ends otherwise. After `hold_seconds` it
 * is said in any case, and so by coordd_worker_shutdown and coordd_worker_destroy.
 * DEADLINE_EXCEEDED: what is under way has not ended within `timeout_seconds`; call
 * coordd_worker_shutdown then. */
COORDD_API coordd_status_t coordd_worker_leave_at_exit(coordd_worker_t* worker, double hold_seconds,
                                                       double timeout_seconds);

#ifdef __cplusplus
}
#endif

#endif /* COORDD_LEAVING_H_ */
