/* Process sets, join, rooted and pairwise operations as a C11 program sees them: one of the four
 * workers that coordrun starts. Exits 1 at the first wrong thing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_api_check.h"
#include "coordd/coordd.h"

enum { kRanks = 4, kElements = 6 };

static coordd_worker_t* worker;
static int rank;

static coordd_tensor_t Tensor(const char* name, coordd_dtype_t dtype, const void* input,
                              void* output, const int64_t* shape, int32_t ndim) {
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.input = input;
  tensor.output = output;
  tensor.output_capacity_bytes = 1 << 10;
  tensor.shape = shape;
  tensor.ndim = ndim;
  return tensor;
}

static coordd_call_options_t InSet(int32_t set) {
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  options.process_set = set;
  return options;
}

static void TestRefusedSets(void) {
  const int32_t twice[] = {0, 1, 0}, beyond[] = {0, kRanks};
  int32_t set = 7;
  CHECK_ERROR(coordd_process_set_add(worker, twice, 3, 1, &set), COORDD_INVALID_ARGUMENT,
              "[0, 0, 1]");
  CHECK(set == 0);
  CHECK_ERROR(coordd_process_set_add(worker, beyond, 2, 1, &set), COORDD_INVALID_ARGUMENT,
              "0 to 3");
  CHECK_ERROR(coordd_process_set_add(worker, beyond, 0, 1, &set), COORDD_INVALID_ARGUMENT, "[]");
  CHECK_ERROR(coordd_process_set_add(worker, twice, 99, 1, &set), COORDD_INVALID_ARGUMENT, "99");
  CHECK_ERROR(coordd_process_set_add(worker, NULL, 2, 1, &set), COORDD_INVALID_ARGUMENT, "ranks");
  CHECK_ERROR(coordd_process_set_add(worker, twice, 2, 1, NULL), COORDD_INVALID_ARGUMENT,
              "process_set");
  CHECK_ERROR(coordd_process_set_add(worker, twice, 2, -1, &set), COORDD_INVALID_ARGUMENT, "-1");
  CHECK_ERROR(coordd_process_set_remove(worker, 0, 1), COORDD_INVALID_ARGUMENT, "stays");
  CHECK_ERROR(coordd_process_set_remove(worker, 77, 1), COORDD_INVALID_ARGUMENT, "set 77");

  /* Ranks that ask for different sets get an error that names both. */
  const int32_t own[] = {rank == 0 ? 0 : 1, 2};
  CHECK(coordd_process_set_add(worker, own, 2, 10, &set) == COORDD_INVALID_ARGUMENT);
  CHECK(strstr(coordd_last_error(), "0, 2") != NULL && strstr(coordd_last_error(), "1, 2") != NULL);
}

static void TestRanksOfSets(int32_t even) {
  int32_t ranks[kRanks] = {-1, -1, -1, -1};
  size_t count = 0;
  CHECK_OK(coordd_process_set_ranks(worker, 0, ranks, kRanks, &count));
  CHECK(count == kRanks && ranks[0] == 0 && ranks[3] == 3);
  CHECK_OK(coordd_process_set_ranks(worker, even, ranks, kRanks, &count));
  CHECK(count == 2 && ranks[0] == 0 && ranks[1] == 2);
  CHECK_ERROR(coordd_process_set_ranks(worker, even, ranks, 1, &count), COORDD_OUT_OF_RANGE,
              "room for 1");
  CHECK(count == 2);
  CHECK_ERROR(coordd_process_set_ranks(worker, 77, ranks, kRanks, &count), COORDD_INVALID_ARGUMENT,
              "process set 77");
}

static void TestListOfSets(int32_t first, int32_t last) {
  int32_t sets[8];
  int32_t found = -1;
  size_t count = 0;
  CHECK_OK(coordd_process_set_list(worker, sets, 8, &count, &found));
  CHECK(count == 3 && sets[0] == first && sets[2] == last && found == 0);
  CHECK_ERROR(coordd_process_set_list(worker, sets, 2, &count, NULL), COORDD_OUT_OF_RANGE,
              "room for 2");
  CHECK(count == 3);
  CHECK_ERROR(coordd_process_set_list(worker, NULL, 2, &count, NULL), COORDD_INVALID_ARGUMENT,
              "process_sets");
}

/* Sums of rank + 1 in `set`, of which this rank is a member. */
static void CheckSum(int32_t set, const char* name, float expected) {
  const coordd_call_options_t options = InSet(set);
  const int64_t shape[] = {kElements};
  float values[kElements];
  for (int i = 0; i < kElements; ++i) values[i] = (float)(rank + 1);
  const coordd_tensor_t tensor = Tensor(name, COORDD_FLOAT32, values, values, shape, 1);
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_SUM, &options, NULL));
  for (int i = 0; i < kElements; ++i) CHECK(values[i] == expected);
}

static void TestSets(void) {
  const int32_t even_ranks[] = {2, 0}, odd_ranks[] = {1, 3}, most_ranks[] = {1, 2, 3};
  int32_t even = 0, odd = 0, most = 0;
  CHECK_OK(coordd_process_set_add(worker, even_ranks, 2, 10, &even));
  CHECK_OK(coordd_process_set_add(worker, odd_ranks, 2, 10, &odd));
  CHECK_OK(coordd_process_set_add(worker, most_ranks, 3, 10, &most));
  CHECK(even > 0 && odd > even && most > odd);
  TestRanksOfSets(even);
  TestListOfSets(even, most);
  const int32_t own = rank % 2 == 0 ? even : odd;
  /* One name everywhere: names are unique per set. */
  CheckSum(own, "sum", rank % 2 == 0 ? 4 : 6);
  if (rank > 0) CheckSum(most, "sum", 9);
  CheckSum(0, "sum", 10);

  /* A set does not wait for another: rank 3 takes part in nothing but `odd` for a while. */
  coordd_call_options_t options = InSet(most);
  float waiting = 1;
  coordd_work_t* work = NULL;
  const coordd_tensor_t slow = Tensor("slow", COORDD_FLOAT32, &waiting, &waiting, NULL, 0);
  if (rank == 1 || rank == 2)
    CHECK_OK(coordd_allreduce_async(worker, &slow, COORDD_SUM, &options, &work));
  for (int i = 0; i < 20; ++i) CheckSum(own, "meanwhile", rank % 2 == 0 ? 4 : 6);
  options = InSet(own);
  CHECK_OK(coordd_barrier(worker, NULL, &options));
  options = InSet(most);
  if (rank == 1 || rank == 2) CHECK(coordd_work_poll(work) == 0);
  CHECK_OK(coordd_barrier(worker, NULL, NULL));
  if (rank == 3) CHECK_OK(coordd_allreduce_async(worker, &slow, COORDD_SUM, &options, &work));
  if (rank > 0) CHECK_OK(coordd_work_wait(work, -1));
  if (rank > 0) CHECK(waiting == 3);
  coordd_work_release(work);

  /* Roots are ranks of the job; others are refused at the call. */
  float value = (float)rank;
  const coordd_tensor_t tensor = Tensor("root", COORDD_FLOAT32, &value, &value, NULL, 0);
  if (rank == 0) {
    CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, &options, NULL),
                COORDD_INVALID_ARGUMENT, "rank 0, expected a rank of process set");
  } else {
    CHECK_ERROR(coordd_broadcast(worker, &tensor, 0, &options, NULL), COORDD_INVALID_ARGUMENT,
                "root rank 0");
    CHECK_OK(coordd_broadcast(worker, &tensor, 3, &options, NULL));
    CHECK(value == 3);
  }
  CHECK_OK(coordd_process_set_remove(worker, most, 10));
  CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, &options, NULL),
              COORDD_INVALID_ARGUMENT, "does not exist");
  CheckSum(own, "after", rank % 2 == 0 ? 4 : 6);
}

static void TestReduce(int root) {
  const int64_t shape[] = {kElements};
  int32_t input[kElements], output[kElements];
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  for (int i = 0; i < kElements; ++i) input[i] = rank + i, output[i] = -1;
  const coordd_tensor_t tensor =
      Tensor("reduce", COORDD_INT32, input, rank == root ? output : NULL, shape, 1);
  CHECK_OK(coordd_reduce(worker, &tensor, root, COORDD_SUM, NULL, &work));
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(result.output_bytes == (rank == root ? (int64_t)sizeof(output) : 0));
  for (int i = 0; i < kElements; ++i) CHECK(output[i] == (rank == root ? 6 + kRanks * i : -1));
  coordd_work_release(work);
}

static void TestGather(int root) {
  /* Rank r gives r rows of 2. */
  const int64_t shape[] = {rank, 2};
  uint16_t input[2 * kRanks];
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  for (int i = 0; i < 2 * kRanks; ++i) input[i] = (uint16_t)(60000 + 10 * rank + i);
  const coordd_tensor_t tensor = Tensor("gather", COORDD_UINT16, input, NULL, shape, 2);
  CHECK_OK(coordd_gather(worker, &tensor, root, NULL, &work));
  CHECK_OK(coordd_work_result(work, &result));
  if (rank == root) {
    const uint16_t* at = result.output;
    CHECK(result.ndim == 2 && result.shape[0] == 6 && result.shape[1] == 2);
    for (int r = 0; r < kRanks; ++r)
      for (int i = 0; i < 2 * r; ++i) CHECK(*at++ == 60000 + 10 * r + i);
  } else {
    CHECK(result.output_bytes == 0);
  }
  coordd_work_release(work);
}

static void TestPairs(void) {
  /* Around the ring, two in each direction at once. */
  const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
  const int64_t shape[] = {2};
  uint64_t sent[2], got[2][2];
  coordd_work_t* works[4];
  char names[2][2][16];
  for (int i = 0; i < 2; ++i) sent[i] = 1000u + (uint64_t)(10 * rank + i);
  for (int i = 0; i < 2; ++i) {
    snprintf(names[0][i], sizeof(names[0][i]), "%s %d", i == 0 ? "up" : "down", rank);
    snprintf(names[1][i], sizeof(names[1][i]), "%s %d", i == 0 ? "up" : "down",
             i == 0 ? previous : next);
    const coordd_tensor_t send = Tensor(names[0][i], COORDD_UINT64, sent, NULL, shape, 1);
    const coordd_tensor_t receive = Tensor(names[1][i], COORDD_UINT64, NULL, got[i], shape, 1);
    CHECK_OK(coordd_receive_async(worker, &receive, i == 0 ? previous : next, NULL, &works[i]));
    CHECK_OK(coordd_send_async(worker, &send, i == 0 ? next : previous, NULL, &works[2 + i]));
  }
  for (int i = 0; i < 4; ++i) {
    CHECK_OK(coordd_work_wait(works[i], -1));
    coordd_work_release(works[i]);
  }
  for (int i = 0; i < 2; ++i) {
    CHECK(got[0][i] == 1000u + (uint64_t)(10 * previous + i));
    CHECK(got[1][i] == 1000u + (uint64_t)(10 * next + i));
  }
  const coordd_tensor_t own = Tensor("own", COORDD_UINT64, sent, got, shape, 1);
  CHECK_ERROR(coordd_send(worker, &own, rank, NULL, NULL), COORDD_INVALID_ARGUMENT, "itself");
  CHECK_ERROR(coordd_receive(worker, &own, kRanks, NULL, NULL), COORDD_INVALID_ARGUMENT,
              "peer rank 4");
  const coordd_call_options_t options = InSet(1);
  CHECK_ERROR(coordd_send(worker, &own, next, &options, NULL), COORDD_INVALID_ARGUMENT, "send");
  if (rank < 2) {
    const int64_t other_shape[] = {rank + 1};
    const coordd_tensor_t bad = Tensor("bad", COORDD_UINT64, sent, got, other_shape, 1);
    if (rank == 0)
      CHECK_ERROR(coordd_send(worker, &bad, 1, NULL, NULL), COORDD_INVALID_ARGUMENT, "[2]");
    else
      CHECK_ERROR(coordd_receive(worker, &bad, 0, NULL, NULL), COORDD_INVALID_ARGUMENT, "[2]");
  }
}

/* Rank r has r + 1 steps; then it joins. */
static void TestJoin(void) {
  int32_t last = -1;
  for (int step = 0; step <= rank; ++step) {
    const int64_t shape[] = {kElements}, rows[] = {2, 3};
    float sum[kElements], average[kElements];
    int8_t most[kElements], row[kElements];
    for (int i = 0; i < kElements; ++i) {
      sum[i] = (float)rank;
      average[i] = 4;
      most[i] = row[i] = (int8_t)(rank - 100);
    }
    coordd_tensor_t tensor = Tensor("join sum", COORDD_FLOAT32, sum, sum, shape, 1);
    coordd_work_t* work = NULL;
    coordd_result_t result = COORDD_RESULT_INIT;
    CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL));
    tensor = Tensor("join average", COORDD_FLOAT32, average, average, shape, 1);
    CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_AVERAGE, NULL, NULL));
    tensor = Tensor("join max", COORDD_INT8, most, most, shape, 1);
    CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_MAX, NULL, NULL));
    tensor = Tensor("join rows", COORDD_INT8, row, NULL, rows, 2);
    CHECK_OK(coordd_allgather(worker, &tensor, NULL, &work));
    CHECK_OK(coordd_work_result(work, &result));
    /* Ranks below `step` are through. */
    float expected = 0;
    for (int r = step; r < kRanks; ++r) expected += (float)r;
    for (int i = 0; i < kElements; ++i) {
      CHECK(sum[i] == expected);
      CHECK(average[i] == (float)(kRanks - step)); /* still divided by all */
      CHECK(most[i] == kRanks - 1 - 100);
    }
    CHECK(result.shape[0] == 2 * (kRanks - step) && result.shape[1] == 3);
    CHECK(((const int8_t*)result.output)[0] == step - 100);
    coordd_work_release(work);
    if (step > 0) {
      tensor = Tensor("join root", COORDD_FLOAT32, sum, sum, shape, 1);
      CHECK_ERROR(coordd_broadcast(worker, &tensor, 0, NULL, NULL), COORDD_FAILED_PRECONDITION,
                  "rank 0");
      CHECK_OK(coordd_broadcast(worker, &tensor, kRanks - 1, NULL, NULL));
    }
  }
  CHECK_OK(coordd_join(worker, NULL, &last));
  CHECK(last == kRanks - 1);
  /* Once more: nobody has joined now. */
  CheckSum(0, "join after", 10);
  coordd_work_t* work = NULL;
  coordd_result_t result = COORDD_RESULT_INIT;
  float value = 0;
  const coordd_tensor_t tensor = Tensor("join refused", COORDD_FLOAT32, &value, &value, NULL, 0);
  char key[1];
  size_t key_bytes = 0;
  if (rank > 0) CHECK_OK(coordd_store_get(worker, "joined", key, 1, &key_bytes, 10));
  CHECK_OK(coordd_join_async(worker, NULL, &work));
  if (rank == 0) {
    CHECK_ERROR(coordd_allreduce(worker, &tensor, COORDD_SUM, NULL, NULL),
                COORDD_FAILED_PRECONDITION, "this rank has joined");
    CHECK(coordd_work_poll(work) == 0);
    CHECK_OK(coordd_store_set(worker, "joined", "", 0, 10));
  }
  CHECK_OK(coordd_work_wait(work, -1));
  CHECK_OK(coordd_work_result(work, &result));
  CHECK(result.output_bytes == 4 && result.ndim == 0);
  last = *(const int32_t*)result.output;
  CHECK(last >= 0 && last < kRanks);
  coordd_work_release(work);
}

static void TestGroupedReducescatter(void) {
  const int64_t shape[] = {kRanks, 2};
  int16_t input[2][2 * kRanks], output[2][2];
  coordd_tensor_t tensors[2];
  coordd_work_t* works[2];
  for (int t = 0; t < 2; ++t) {
    for (int i = 0; i < 2 * kRanks; ++i) input[t][i] = (int16_t)(rank + i + 100 * t);
    tensors[t] =
        Tensor(t == 0 ? "scatter a" : "scatter b", COORDD_INT16, input[t], output[t], shape, 2);
  }
  CHECK_OK(coordd_grouped_reducescatter(worker, "scatter", tensors, 2, COORDD_SUM, NULL, works));
  for (int t = 0; t < 2; ++t) {
    for (int i = 0; i < 2; ++i) CHECK(output[t][i] == 6 + kRanks * (2 * rank + i + 100 * t));
    coordd_work_release(works[t]);
  }
}

/* What a group was the last time says nothing about this time. */
static void TestGroupsThatChange(void) {
  float floats[2] = {1, 2};
  double doubles[2] = {1, 2};
  const int64_t one[] = {1}, two[] = {2};
  coordd_tensor_t tensors[2];
  int step;
  for (step = 0; step < 3; ++step) {
    tensors[0] = Tensor("c0", COORDD_FLOAT32, &floats[0], &floats[0], one, 1);
    tensors[1] = Tensor("c1", COORDD_FLOAT32, &floats[1], &floats[1], one, 1);
    floats[0] = floats[1] = 1;
    CHECK_OK(coordd_grouped_allreduce(worker, "changes", tensors, 2, COORDD_SUM, NULL, NULL));
    CHECK(floats[0] == (float)kRanks && floats[1] == (float)kRanks);
  }
  CHECK_OK(coordd_grouped_allreduce(worker, "changes", tensors, 2, COORDD_MAX, NULL, NULL));
  CHECK(floats[0] == (float)kRanks && floats[1] == (float)kRanks);
  tensors[0].shape = two; /* both floats; the second has a tensor of its own no more */
  CHECK_OK(coordd_grouped_allreduce(worker, "changes", tensors, 1, COORDD_SUM, NULL, NULL));
  CHECK(floats[0] == (float)(kRanks * kRanks) && floats[1] == (float)(kRanks * kRanks));
  tensors[0] = Tensor("c0", COORDD_FLOAT64, &doubles[0], &doubles[0], one, 1);
  tensors[1] = Tensor("c2", COORDD_FLOAT64, &doubles[1], &doubles[1], one, 1);
  CHECK_OK(coordd_grouped_allreduce(worker, "changes", tensors, 2, COORDD_AVERAGE, NULL, NULL));
  CHECK(doubles[0] == 1 && doubles[1] == 2);
  tensors[1].dtype = (coordd_dtype_t)99;
  CHECK_ERROR(coordd_grouped_allreduce(worker, "changes", tensors, 2, COORDD_AVERAGE, NULL, NULL),
              COORDD_INVALID_ARGUMENT, "tensor c2: dtype is 99");
}

static void TestTimeline(void) {
  CHECK_ERROR(coordd_timeline_start(NULL, "t.json", 0), COORDD_INVALID_ARGUMENT, "worker");
  CHECK_ERROR(coordd_timeline_start(worker, NULL, 0), COORDD_INVALID_ARGUMENT, "path");
  CHECK_ERROR(coordd_timeline_start(worker, "", 0), COORDD_INVALID_ARGUMENT, "path");
  CHECK_ERROR(coordd_timeline_start(worker, "/no/such/folder/{rank}.json", 1),
              COORDD_INVALID_ARGUMENT, "/no/such/folder/");
  CHECK_OK(coordd_timeline_stop(worker));
}

int main(void) {
  CHECK_OK(coordd_worker_start(NULL, &worker));
  rank = coordd_rank(worker);
  CHECK(coordd_size(worker) == kRanks);
  TestTimeline();
  TestRefusedSets();
  TestSets();
  for (int root = 0; root < kRanks; ++root) {
    TestReduce(root);
    TestGather(root);
  }
  TestPairs();
  TestJoin();
  TestGroupedReducescatter();
  TestGroupsThatChange();
  CHECK_OK(coordd_worker_shutdown(worker, 10));
  coordd_worker_destroy(worker);
  printf("c_api_sets_test: all good on rank %d of %d\n", rank, kRanks);
  return 0;
}
