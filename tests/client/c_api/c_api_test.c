/* The C interface as a C11 program sees it. Without COORDD_ADDR it tests what needs no coordd; with
 * it, as one of the workers that coordrun starts, every operation. Exits 1 at the first wrong
 * thing. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_api_check.h"
#include "coordd/coordd.h"

/* fork and waitpid, which strict C11 does not declare. */
extern int fork(void);
extern int waitpid(int pid, int* status, int options);
extern void _exit(int status);

static coordd_tensor_t Tensor(const char* name, coordd_dtype_t dtype, void* data,
                              const int64_t* shape, int32_t ndim) {
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.input = tensor.output = data;
  tensor.shape = shape;
  tensor.ndim = ndim;
  return tensor;
}

/* --- without coordd ------------------------------------------------------------------------ */

static void TestVersions(void) {
  CHECK(coordd_abi_version() == COORDD_ABI_VERSION);
  CHECK(strchr(coordd_version(), '.') != NULL);
  CHECK(strcmp(coordd_status_name(COORDD_ABORTED), "ABORTED") == 0);
  CHECK(strcmp(coordd_status_name(COORDD_UNAUTHENTICATED), "UNAUTHENTICATED") == 0);
  CHECK(coordd_status_name(99) != NULL && coordd_status_name(-1) != NULL);
  CHECK(strstr(coordd_check_build(0), "[X] gRPC") != NULL);
  CHECK(coordd_check_build(1)[0] == '[');
}

static void TestNulls(void) {
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  CHECK_ERROR(coordd_worker_start(NULL, NULL), COORDD_INVALID_ARGUMENT, "worker is NULL");
  CHECK_ERROR(coordd_allreduce_async(NULL, NULL, COORDD_SUM, NULL, &work), COORDD_INVALID_ARGUMENT,
              "worker is NULL");
  CHECK_ERROR(coordd_barrier(NULL, NULL, NULL), COORDD_INVALID_ARGUMENT, "worker is NULL");
  CHECK_ERROR(coordd_work_wait(NULL, 0), COORDD_INVALID_ARGUMENT, "work is NULL");
  CHECK_ERROR(coordd_work_result(NULL, &result), COORDD_INVALID_ARGUMENT, "work is NULL");
  CHECK_ERROR(coordd_worker_status(NULL), COORDD_INVALID_ARGUMENT, "worker is NULL");
  CHECK_ERROR(coordd_store_set(NULL, "k", "v", 1, 1), COORDD_INVALID_ARGUMENT, "worker is NULL");
  CHECK(coordd_work_poll(NULL) == -1);
  CHECK(coordd_rank(NULL) == -1 && coordd_size(NULL) == -1);
  coordd_work_release(NULL);
  coordd_worker_destroy(NULL);
}

static void TestOptions(void) {
  struct {
    coordd_options_t known;
    int64_t newer;
  } larger;
  coordd_worker_t* worker = (coordd_worker_t*)&larger;
  coordd_options_t options = COORDD_OPTIONS_INIT;
  options.ignore_environment = 1;
  CHECK_ERROR(coordd_worker_start(&options, &worker), COORDD_INVALID_ARGUMENT, "COORDD_ADDR");
  CHECK(worker == NULL);
  options.coordinator = "no port";
  CHECK_ERROR(coordd_worker_start(&options, &worker), COORDD_INVALID_ARGUMENT, "no port");
  options.coordinator = "127.0.0.1:1";
  options.join_timeout_seconds = -1;
  CHECK_ERROR(coordd_worker_start(&options, &worker), COORDD_INVALID_ARGUMENT, "-1");

  /* Nobody listens on port 1. */
  options.join_timeout_seconds = 0.3;
  CHECK(coordd_worker_start(&options, &worker) != COORDD_OK);
  CHECK(strstr(coordd_last_error(), "127.0.0.1:1") != NULL);

  options.struct_size = 0;
  CHECK_ERROR(coordd_worker_start(&options, &worker), COORDD_INVALID_ARGUMENT, "struct_size");
  memset(&larger, 0, sizeof(larger));
  larger.known.struct_size = sizeof(larger);
  larger.known.ignore_environment = 1;
  CHECK_ERROR(coordd_worker_start(&larger.known, &worker), COORDD_INVALID_ARGUMENT, "COORDD_ADDR");
  larger.newer = 1;
  CHECK_ERROR(coordd_worker_start(&larger.known, &worker), COORDD_INVALID_ARGUMENT,
              "newer coordd.h");
}

static void TestLaunchPlace(void) {
  coordd_options_t options = COORDD_OPTIONS_INIT;
  coordd_launch_t launch = COORDD_LAUNCH_INIT;
  options.ignore_environment = 1;
  CHECK_OK(coordd_launch_place(&options, &launch));
  CHECK(strcmp(launch.launcher, "none") == 0 && strcmp(launch.job, "default") == 0);
  CHECK(launch.rank == -1 && launch.size == -1);
  options.has_launcher_rank = options.launcher_local_rank = 1;
  options.launcher_rank = 2;
  options.min_workers = options.max_workers = 4;
  options.job = "mine";
  CHECK_OK(coordd_launch_place(&options, &launch));
  CHECK(strcmp(launch.job, "mine") == 0 && launch.rank == 2 && launch.size == 4);
  CHECK(launch.local_rank == 1);
  options.launcher = "slumr";
  CHECK_ERROR(coordd_launch_place(&options, &launch), COORDD_INVALID_ARGUMENT, "slumr");
  options.launcher = "none";
  options.port_range = "9-5";
  CHECK_ERROR(coordd_launch_place(&options, &launch), COORDD_INVALID_ARGUMENT, "9-5");
  /* A program of revision 2 has neither. */
  options.struct_size = offsetof(coordd_options_t, launcher);
  CHECK_OK(coordd_launch_place(&options, &launch));
}

/* --- with coordd --------------------------------------------------------------------------- */

static coordd_worker_t* worker;
static int rank, size;

static void TestPlacement(void) {
  coordd_placement_t placement = COORDD_PLACEMENT_INIT;
  coordd_launch_t launch = COORDD_LAUNCH_INIT;
  char address[COORDD_HOST_ADDRESS_BYTES];
  CHECK_OK(coordd_launch_place(NULL, &launch));
  CHECK(launch.rank == atoi(getenv("COORDD_RANK")) && launch.size == size);
  CHECK_OK(coordd_worker_placement(worker, &placement));
  CHECK(placement.generation >= 1);
  CHECK(placement.rank == rank && placement.size == size);
  CHECK(coordd_local_size(worker) == placement.local_size && placement.local_rank < size);
  CHECK(coordd_cross_size(worker) == placement.cross_size);
  CHECK(placement.nodes == 1 && placement.homogeneous == 1);
  CHECK(atoi(getenv("COORDD_SIZE")) == size);
  CHECK(strchr(coordd_worker_metrics_address(worker), ':') != NULL);
  CHECK_OK(coordd_worker_status(worker));
  CHECK_OK(coordd_worker_host_address(worker, address, sizeof(address)));
  CHECK(strcmp(address, "127.0.0.1") == 0 || strcmp(address, "::1") == 0);
  CHECK_ERROR(coordd_worker_host_address(worker, address, 3), COORDD_INVALID_ARGUMENT, "capacity");
  CHECK_ERROR(coordd_worker_host_address(worker, NULL, 64), COORDD_INVALID_ARGUMENT, "address");
  CHECK_ERROR(coordd_worker_host_address(NULL, address, 64), COORDD_INVALID_ARGUMENT, "worker");
}

static void TestAllreduce(void) {
  const int64_t shape[] = {2, 3};
  float values[6];
  int32_t inputs[6], outputs[6];
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  coordd_tensor_t tensor = Tensor("floats", COORDD_FLOAT32, values, shape, 2);
  int i;
  for (i = 0; i < 6; ++i) values[i] = (float)(rank + i);
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_AVERAGE, NULL, NULL));
  for (i = 0; i < 6; ++i) CHECK(fabs(values[i] - ((size - 1) / 2.0 + i)) < 1e-5);

  /* Out of place, scaled, with the result looked at. */
  for (i = 0; i < 6; ++i) inputs[i] = rank + 1;
  tensor = Tensor("ints", COORDD_INT32, outputs, shape, 2);
  tensor.input = inputs;
  options.postscale_factor = 10;
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_MAX, &options, &work));
  for (i = 0; i < 6; ++i) CHECK(inputs[i] == rank + 1 && outputs[i] == 10 * size);
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(result.output == outputs && result.output_bytes == 24 && result.size == size);
  CHECK(result.ndim == 2 && result.shape[0] == 2 && result.shape[1] == 3);
  CHECK(strcmp(coordd_work_name(work), "ints") == 0);
  coordd_work_release(work);
}

static void TestAllreduceInOneCall(void) {
  double value = rank + 1;
  coordd_work_t* work = (coordd_work_t*)&value;
  coordd_tensor_t tensor = Tensor("at once", COORDD_FLOAT64, &value, NULL, 0);
  CHECK_OK(coordd_allreduce_for(worker, &tensor, COORDD_SUM, NULL, 60, &work));
  CHECK(value == size * (size + 1) / 2.0 && work == NULL);

  tensor.dtype = 99;
  CHECK_ERROR(coordd_allreduce_for(worker, &tensor, COORDD_SUM, NULL, 60, &work),
              COORDD_INVALID_ARGUMENT, "dtype");
  CHECK(work == NULL);
  if (size == 1) return;

  tensor = Tensor("later", COORDD_FLOAT64, &value, NULL, 0); /* than rank 0 looks up */
  value = rank + 1;
  if (rank == 0) {
    CHECK_ERROR(coordd_allreduce_for(worker, &tensor, COORDD_SUM, NULL, 0, &work),
                COORDD_DEADLINE_EXCEEDED, "still running");
    CHECK(work != NULL && coordd_work_poll(work) == 0);
  }
  CHECK_OK(coordd_barrier(worker, NULL, NULL));
  if (rank == 0) {
    CHECK_OK(coordd_work_wait(work, -1));
    coordd_work_release(work);
  } else {
    CHECK_OK(coordd_allreduce_for(worker, &tensor, COORDD_SUM, NULL, 60, &work));
  }
  CHECK(value == size * (size + 1) / 2.0);

  tensor.name = "unequal";
  CHECK_ERROR(
      coordd_allreduce_for(worker, &tensor, rank == 0 ? COORDD_SUM : COORDD_MAX, NULL, 60, &work),
      COORDD_INVALID_ARGUMENT, "unequal");
  CHECK(work != NULL && coordd_work_poll(work) == 1);
  coordd_work_release(work);
}

static void TestScalarAndEmpty(void) {
  double scalar = rank + 1;
  const int64_t none[] = {0};
  coordd_tensor_t tensor = Tensor("scalar", COORDD_FLOAT64, &scalar, NULL, 0);
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL));
  CHECK(scalar == size * (size + 1) / 2.0);
  tensor = Tensor("empty", COORDD_FLOAT64, &scalar, none, 1);
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL));
  CHECK(scalar == size * (size + 1) / 2.0);
}

static void TestGroups(void) {
  /* As a program that was compiled against a later header lays out its array. */
  struct {
    coordd_tensor_t known;
    int64_t newer;
  } tensors[3];
  int64_t values[3];
  const char* names[] = {"g0", "g1", "g2"};
  coordd_work_t* works[3] = {NULL, NULL, NULL};
  int i;
  for (i = 0; i < 3; ++i) {
    values[i] = rank + i;
    tensors[i].known = Tensor(names[i], COORDD_INT64, &values[i], NULL, 0);
    tensors[i].known.struct_size = sizeof(tensors[i]);
    tensors[i].newer = 0;
  }
  CHECK_OK(coordd_grouped_allreduce_async(worker, "group", &tensors[0].known, 3, COORDD_SUM, NULL,
                                          works));
  for (i = 0; i < 3; ++i) {
    CHECK_OK(coordd_work_wait(works[i], -1));
    CHECK(values[i] == size * (size - 1) / 2 + size * i);
    coordd_work_release(works[i]);
  }
  CHECK_ERROR(
      coordd_grouped_allreduce(worker, "group", &tensors[0].known, 0, COORDD_SUM, NULL, NULL),
      COORDD_INVALID_ARGUMENT, "0 tensors");
}

static void TestGather(void) {
  /* Rank r brings r + 1 rows of 2. */
  int32_t* rows = calloc((size_t)(rank + 1) * 2, sizeof(int32_t));
  const int64_t shape[] = {rank + 1, 2};
  coordd_tensor_t tensor = Tensor("rows", COORDD_INT32, rows, shape, 2);
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  const int32_t* out;
  int i, r, at = 0;
  for (i = 0; i < 2 * (rank + 1); ++i) rows[i] = 100 * rank + i;
  tensor.output = NULL;
  CHECK_OK(coordd_allgather(worker, &tensor, NULL, &work));
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(result.ndim == 2 && result.shape[0] == size * (size + 1) / 2 && result.shape[1] == 2);
  CHECK((uintptr_t)result.output % 64 == 0);
  out = result.output;
  for (r = 0; r < size; ++r) {
    for (i = 0; i < 2 * (r + 1); ++i) CHECK(out[at++] == 100 * r + i);
  }
  CHECK(result.output_bytes == at * 4);
  coordd_work_release(work);
  work = NULL;
  tensor.name = "grouped rows";
  CHECK_OK(coordd_grouped_allgather(worker, "gathers", &tensor, 1, NULL, &work));
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(result.output_bytes == at * 4);
  coordd_work_release(work);
  free(rows);
}

static void TestBroadcast(void) {
  const int64_t shape[] = {4};
  uint8_t bytes[4] = {0, 0, 0, 0};
  const int root = size - 1;
  coordd_tensor_t tensor = Tensor("bytes", COORDD_UINT8, bytes, shape, 1);
  if (rank == root) memcpy(bytes, "abc", 4);
  CHECK_OK(coordd_broadcast(worker, &tensor, root, NULL, NULL));
  CHECK(strcmp((char*)bytes, "abc") == 0);
  CHECK_ERROR(coordd_broadcast(worker, &tensor, size, NULL, NULL), COORDD_INVALID_ARGUMENT,
              "bytes");
}

static void TestReducescatter(void) {
  /* One row more than ranks: rank 0 gets two. */
  double* rows = calloc((size_t)size + 1, sizeof(double));
  const int64_t shape[] = {size + 1};
  coordd_tensor_t tensor = Tensor("scattered", COORDD_FLOAT64, rows, shape, 1);
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  const double* out;
  int i;
  for (i = 0; i <= size; ++i) rows[i] = i;
  tensor.output = NULL;
  CHECK_OK(coordd_reducescatter(worker, &tensor, COORDD_SUM, NULL, &work));
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(result.ndim == 1 && result.shape[0] == (rank == 0 ? 2 : 1));
  out = result.output;
  CHECK(out[0] == (rank == 0 ? 0 : rank + 1) * size);
  coordd_work_release(work);
  free(rows);
}

static void TestAlltoall(void) {
  /* r + 1 rows to rank r. */
  const int64_t total = size * (size + 1) / 2;
  int64_t* splits = calloc((size_t)size, sizeof(int64_t));
  int64_t* rows = calloc((size_t)total, sizeof(int64_t));
  coordd_tensor_t tensor = Tensor("exchanged", COORDD_INT64, rows, &total, 1);
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  const int64_t* out;
  int i, r, at = 0;
  for (r = 0; r < size; ++r) {
    splits[r] = r + 1;
    for (i = 0; i <= r; ++i) rows[at++] = 100 * rank + r;
  }
  tensor.output = NULL;
  CHECK_OK(coordd_alltoall(worker, &tensor, splits, (size_t)size, NULL, &work));
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(result.num_received_splits == size && result.shape[0] == size * (rank + 1));
  out = result.output;
  for (r = 0; r < size; ++r) {
    CHECK(result.received_splits[r] == rank + 1);
    for (i = 0; i <= rank; ++i) CHECK(out[r * (rank + 1) + i] == 100 * r + rank);
  }
  coordd_work_release(work);
  splits[0] += 1;
  CHECK(coordd_alltoall(worker, &tensor, splits, (size_t)size, NULL, NULL) ==
        COORDD_INVALID_ARGUMENT);
  free(rows);
  free(splits);
}

struct seen {
  int calls;
  coordd_status_t status;
};
static void OnDone(void* user, coordd_status_t status, const char* message) {
  struct seen* seen = user;
  seen->status = status;
  seen->calls += message != NULL ? 1 : 100;
}

static void TestWorks(void) {
  float value = 1;
  struct seen seen = {0, -1};
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  coordd_tensor_t tensor = Tensor("late", COORDD_FLOAT32, &value, NULL, 0);
  CHECK_OK(coordd_barrier(worker, NULL, NULL));
  if (size > 1 && rank == 0) {
    /* The others submit it only behind a barrier that this rank reaches later. */
    coordd_work_t* second = work;
    CHECK_OK(coordd_allreduce_async(worker, &tensor, COORDD_SUM, NULL, &work));
    CHECK(coordd_work_poll(work) == 0);
    CHECK_ERROR(coordd_work_wait(work, 0.01), COORDD_DEADLINE_EXCEEDED, "late");
    CHECK_ERROR(coordd_work_result(work, &result), COORDD_FAILED_PRECONDITION, "still running");
    CHECK_ERROR(coordd_allreduce_async(worker, &tensor, COORDD_SUM, NULL, &second),
                COORDD_ALREADY_EXISTS, "late");
    CHECK(second == NULL);
    CHECK_OK(coordd_barrier(worker, NULL, NULL));
  } else {
    CHECK_OK(size > 1 ? coordd_barrier(worker, NULL, NULL) : COORDD_OK);
    CHECK_OK(coordd_allreduce_async(worker, &tensor, COORDD_SUM, NULL, &work));
  }
  CHECK_OK(coordd_work_wait(work, 60));
  CHECK(coordd_work_poll(work) == 1 && value == (float)size);
  CHECK_OK(coordd_work_on_complete(work, OnDone, &seen));
  CHECK(seen.calls == 1 && seen.status == COORDD_OK);
  coordd_work_release(work);
}

static void TestRefusals(void) {
  float value = 1;
  const int64_t shape[] = {1};
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  coordd_tensor_t tensor = Tensor("refused", COORDD_FLOAT32, &value, shape, 1);
  tensor.device_kind = COORDD_CUDA;
  CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL), COORDD_UNIMPLEMENTED,
              "CUDA");
  tensor.device_kind = COORDD_HOST;
  tensor.dtype = 77;
  CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL), COORDD_INVALID_ARGUMENT,
              "77");
  tensor.dtype = COORDD_FLOAT32;
  CHECK_ERROR(coordd_allreduce(worker, &tensor, 9, NULL, NULL), COORDD_INVALID_ARGUMENT, "9");
  tensor.ndim = 9;
  CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL), COORDD_INVALID_ARGUMENT,
              "dimensions");
  tensor.ndim = 1;
  tensor.shape = NULL;
  CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL), COORDD_INVALID_ARGUMENT,
              "shape");
  tensor.shape = shape;
  tensor.name = NULL;
  CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL), COORDD_INVALID_ARGUMENT,
              "name");
  tensor.name = "refused";
  options.process_set = 1;
  CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, &options, NULL),
              COORDD_INVALID_ARGUMENT, "process set 1");
  if (size > 1) {
    /* Every rank is told what rank 0 meant and what the others did. */
    tensor.name = "mismatched";
    CHECK_ERROR(coordd_allreduce(worker, &tensor, rank == 0 ? COORDD_SUM : COORDD_MAX, NULL, NULL),
                COORDD_INVALID_ARGUMENT, "mismatched");
  }
}

static void TestFork(void) {
  float value = 1;
  int status = -1;
  int child;
  coordd_tensor_t tensor = Tensor("forked", COORDD_FLOAT32, &value, NULL, 0);
  coordd_work_t* work = NULL;
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, &work));
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int good =
        coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL) == COORDD_FAILED_PRECONDITION;
    good = good && coordd_work_wait(work, 1) == COORDD_FAILED_PRECONDITION;
    coordd_work_release(work);
    coordd_worker_destroy(worker);
    _exit(good ? 0 : 1);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  coordd_work_release(work);
  CHECK_OK(coordd_barrier(worker, "after fork", NULL));
}

static void TestEnd(void) {
  float value = (float)rank;
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  coordd_tensor_t tensor = Tensor("last", COORDD_FLOAT32, &value, NULL, 0);
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_MAX, NULL, &work));
  CHECK_OK(coordd_worker_shutdown(worker, 10));
  CHECK_OK(coordd_worker_shutdown(worker, 10));
  CHECK(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL) != COORDD_OK);
  coordd_worker_destroy(worker);
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(*(const float*)result.output == (float)(size - 1));
  coordd_work_release(work);
}

int main(void) {
  if (getenv("COORDD_ADDR") == NULL) {
    TestVersions();
    TestNulls();
    TestOptions();
    TestLaunchPlace();
    puts("c_api_test: all good without coordd");
    return 0;
  }
  CHECK_OK(coordd_worker_start(NULL, &worker));
  rank = coordd_rank(worker);
  size = coordd_size(worker);
  TestPlacement();
  TestAllreduce();
  TestAllreduceInOneCall();
  TestScalarAndEmpty();
  TestGroups();
  TestGather();
  TestBroadcast();
  TestReducescatter();
  TestAlltoall();
  TestWorks();
  TestRefusals();
  TestFork();
  TestEnd();
  printf("c_api_test: all good on rank %d of %d\n", rank, size);
  return 0;
}
