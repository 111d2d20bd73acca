/* coordd: small values for the other members. A part of coordd.h, which includes it: include that.
 */
#ifndef COORDD_STORE_H_
#define COORDD_STORE_H_

#ifndef COORDD_COORDD_H_
#error "include coordd/coordd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- small values for the other members ------------------------------------------------------
 *
 * A key-value store of the job. Keys: 1 to 248 bytes of UTF-8. Values: up to 64 KiB of any bytes.
 * Thread-safe. Every call: INVALID_ARGUMENT beyond a bound, UNAVAILABLE coordd cannot be reached
 * within `timeout_seconds`, RESOURCE_EXHAUSTED the job has too many keys or bytes.
 *
 * coordd keeps it in memory, and each worker remembers what it has written. When coordd was killed
 * and started again, calls wait until the members are back, and then find:
 *
 *  - every write that was answered to a member that comes back, or a later one of the same key. It
 *    is the last that counts, of all that those who come back were answered; and a key that was
 *    deleted last is not there.
 *  - of a write that was not answered: that it was made, or that it was not.
 *  - nothing of what a member has written last that does not come back: the key has an older value
 *    then, or none. That holds too for who has the job's token and is no member.
 *
 * A worker remembers 1 MiB of keys and values, with 32 bytes for each; a key whose value was beyond
 * that is not there. It remembers 256 KiB of keys that it has deleted; of those it has deleted
 * before, what others had set may be there again.
 *
 * add and append are sent once: UNAVAILABLE says that coordd went away before it answered, and the
 * number may have been added. All other calls are sent again, so that a set or delete whose answer
 * was lost may be made twice; of what others have done in between it then knows nothing. */

COORDD_API coordd_status_t coordd_store_set(coordd_worker_t* worker, const char* key,
                                            const void* value, size_t size_bytes,
                                            double timeout_seconds);
/* Waits until somebody has set the key. *size_bytes receives the size of the value, also when the
 * buffer is too small for it (OUT_OF_RANGE). DEADLINE_EXCEEDED: nobody did. */
COORDD_API coordd_status_t coordd_store_get(coordd_worker_t* worker, const char* key, void* buffer,
                                            size_t capacity_bytes, size_t* size_bytes,
                                            double timeout_seconds);
/* A missing key counts as 0; *sum (may be NULL) receives the new value. */
COORDD_API coordd_status_t coordd_store_add(coordd_worker_t* worker, const char* key, int64_t delta,
                                            int64_t* sum, double timeout_seconds);

/* Sets the key if its value is `expected`, or with `expected` NULL if the key is missing, in one
 * step. *size_bytes and `buffer` receive the value that the key has then: the desired one, unless
 * another was found (OUT_OF_RANGE: the buffer is too small for it). NOT_FOUND: the key is missing,
 * and a value was expected. */
COORDD_API coordd_status_t coordd_store_compare_set(coordd_worker_t* worker, const char* key,
                                                    const void* expected, size_t expected_bytes,
                                                    const void* desired, size_t desired_bytes,
                                                    void* buffer, size_t capacity_bytes,
                                                    size_t* size_bytes, double timeout_seconds);
/* Puts the value behind the one that the key has; a missing key counts as empty. *size_bytes (may
 * be NULL) receives the bytes of both. */
COORDD_API coordd_status_t coordd_store_append(coordd_worker_t* worker, const char* key,
                                               const void* value, size_t value_bytes,
                                               size_t* size_bytes, double timeout_seconds);
/* *deleted (may be NULL) receives 1 or, where there was no such key, 0. */
COORDD_API coordd_status_t coordd_store_delete(coordd_worker_t* worker, const char* key,
                                               int32_t* deleted, double timeout_seconds);
/* *there receives 1 if all `count` keys are there now, else 0. Does not wait for them. */
COORDD_API coordd_status_t coordd_store_check(coordd_worker_t* worker, const char* const* keys,
                                              size_t count, int32_t* there, double timeout_seconds);
/* Waits until somebody has set all `count` keys. `buffer` receives their values one behind the
 * other, and sizes_bytes[i] the size of each, also when the buffer is too small (OUT_OF_RANGE).
 * DEADLINE_EXCEEDED: a key was not set in time. */
COORDD_API coordd_status_t coordd_store_get_all(coordd_worker_t* worker, const char* const* keys,
                                                size_t count, void* buffer, size_t capacity_bytes,
                                                size_t* sizes_bytes, double timeout_seconds);
/* How many keys start with the prefix, which may be empty, without those that coordd uses itself
 * for a generation. */
COORDD_API coordd_status_t coordd_store_count(coordd_worker_t* worker, const char* prefix,
                                              int64_t* keys, double timeout_seconds);

#ifdef __cplusplus
}
#endif

#endif /* COORDD_STORE_H_ */
