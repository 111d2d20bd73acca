/* A C11 program that is asked to leave: two workers step until one of them has to end; that one
 * leaves where both have agreed to it, and the other goes on alone. Started by coordrun --min-np 1.
 * Exits 1 at the first wrong thing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_api_check.h"
#include "coordd/coordd.h"

static const double kPatience = 60; /* against hangs only */

/* The largest of what the ranks say. */
static float Agree(coordd_worker_t* worker, const char* name, float value) {
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = name;
  tensor.dtype = COORDD_FLOAT32;
  tensor.input = tensor.output = &value;
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_MAX, NULL, &work));
  CHECK_OK(coordd_work_result(work, &result));
  coordd_work_release(work);
  return value;
}

static void TestRefusals(coordd_worker_t* worker) {
  CHECK(coordd_worker_drain_seconds(NULL) < 0);
  CHECK(coordd_worker_drain_seconds(worker) < 0);
  CHECK_ERROR(coordd_worker_ask_to_leave(NULL, 60, "x"), COORDD_INVALID_ARGUMENT, "worker is NULL");
  CHECK_ERROR(coordd_worker_ask_to_leave(worker, 0, NULL), COORDD_INVALID_ARGUMENT, "grace");
  CHECK_ERROR(coordd_worker_ask_to_leave(worker, -1, NULL), COORDD_INVALID_ARGUMENT, "");
  CHECK_ERROR(coordd_worker_ask_to_leave(worker, 8 * 86400.0, NULL), COORDD_INVALID_ARGUMENT,
              "at most a week");
  CHECK(coordd_worker_drain_seconds(worker) < 0);
}

int main(void) {
  coordd_worker_t* worker = NULL;
  coordd_placement_t placement = COORDD_PLACEMENT_INIT;
  int leaves;
  CHECK_OK(coordd_worker_start(NULL, &worker));
  CHECK(coordd_size(worker) == 2);
  leaves = coordd_rank(worker) == 1;
  TestRefusals(worker);
  CHECK(Agree(worker, "refused", 0) == 0);
  if (leaves) {
    CHECK_OK(coordd_worker_ask_to_leave(worker, 1200, "the batch system"));
    CHECK_OK(coordd_worker_ask_to_leave(worker, 600, NULL)); /* sooner */
  }
  while (Agree(worker, "commit", coordd_worker_drain_seconds(worker) >= 0 ? 1 : 0) == 0) {
  }
  if (leaves) {
    const double left = coordd_worker_drain_seconds(worker);
    CHECK(left > 0 && left <= 1200);
    CHECK_OK(coordd_worker_shutdown(worker, kPatience));
    puts("c_api_drain_test: it has left");
  } else {
    CHECK(coordd_worker_drain_seconds(worker) < 0);
    CHECK_OK(coordd_worker_change_members(worker, kPatience, &placement));
    CHECK(placement.rank == 0 && placement.size == 1);
    CHECK(Agree(worker, "alone", 7) == 7);
    CHECK_OK(coordd_worker_shutdown(worker, kPatience));
    puts("c_api_drain_test: the other has gone on");
  }
  coordd_worker_destroy(worker);
  return 0;
}
