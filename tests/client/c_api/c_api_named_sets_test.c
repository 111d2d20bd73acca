/* Process sets that their members make alone, as a C11 program sees them: one of the four workers
 * that coordrun starts. Exits 1 at the first wrong thing. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "c_api_check.h"
#include "coordd/coordd.h"

enum { kRanks = 4 };

static coordd_worker_t* worker;
static int rank;

static int32_t Add(const char* name, const int32_t* ranks, size_t count) {
  int32_t set = 0;
  CHECK_OK(coordd_process_set_add_members(worker, name, ranks, count, 10, &set));
  CHECK(set > 0);
  return set;
}

/* The sum of rank + 1 over the members, by name and by a comm. */
static void CheckSums(int32_t set, float expected) {
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  coordd_comm_t* comm = NULL;
  float value = (float)(rank + 1);
  options.process_set = set;
  tensor.name = "sum";
  tensor.dtype = COORDD_FLOAT32;
  tensor.input = tensor.output = &value;
  CHECK_OK(coordd_allreduce(worker, &tensor, COORDD_SUM, &options, NULL));
  CHECK(value == expected);
  value = (float)(rank + 1);
  CHECK_OK(coordd_comm_create(worker, set, "order", 10, &comm));
  CHECK_OK(coordd_comm_allreduce(comm, &value, &value, 1, COORDD_FLOAT32, COORDD_SUM));
  CHECK(value == expected);
  coordd_comm_free(comm);
}

static void TestRefused(void) {
  const int32_t mine[] = {rank}, others[] = {(rank + 1) % kRanks}, twice[] = {rank, rank};
  char long_name[300];
  int32_t set = 7;
  memset(long_name, 'x', sizeof long_name);
  long_name[257] = 0;
  CHECK_ERROR(coordd_process_set_add_members(NULL, "a", mine, 1, 1, &set), COORDD_INVALID_ARGUMENT,
              "worker");
  CHECK_ERROR(coordd_process_set_add_members(worker, NULL, mine, 1, 1, &set),
              COORDD_INVALID_ARGUMENT, "name");
  CHECK_ERROR(coordd_process_set_add_members(worker, "", mine, 1, 1, &set), COORDD_INVALID_ARGUMENT,
              "0 bytes");
  CHECK_ERROR(coordd_process_set_add_members(worker, long_name, mine, 1, 1, &set),
              COORDD_INVALID_ARGUMENT, "257 bytes, expected 1 to 256");
  CHECK_ERROR(coordd_process_set_add_members(worker, "\xff", mine, 1, 1, &set),
              COORDD_INVALID_ARGUMENT, "UTF-8");
  CHECK_ERROR(coordd_process_set_add_members(worker, "a", twice, 2, 1, &set),
              COORDD_INVALID_ARGUMENT, "expected different ranks of 0 to 3");
  CHECK_ERROR(coordd_process_set_add_members(worker, "a", others, 1, 1, &set),
              COORDD_INVALID_ARGUMENT, "its members alone make it");
  CHECK(set == 0);
}

/* Two pairs at a time under names of their own, while nobody else takes part; twice the same ranks.
 */
static void TestPairs(void) {
  const int32_t pair[] = {rank / 2 * 2, rank / 2 * 2 + 1};
  const char* name = rank < 2 ? "low" : "high";
  const float expected = rank < 2 ? 3 : 7;
  const int32_t first = Add(name, pair, 2);
  const int32_t second = Add(rank < 2 ? "low again" : "high again", pair, 2);
  int32_t ranks[kRanks], same = 0;
  size_t count = 0;
  CHECK(first != second);
  CHECK_OK(coordd_process_set_ranks(worker, first, ranks, kRanks, &count));
  CHECK(count == 2 && ranks[0] == pair[0] && ranks[1] == pair[1]);
  CheckSums(first, expected);
  CheckSums(second, expected);
  CHECK_ERROR(coordd_process_set_add_members(worker, name, pair, 2, 1, &same),
              COORDD_ALREADY_EXISTS, "has the name");
  CHECK_OK(coordd_process_set_remove(worker, first, 10));
  CHECK_ERROR(coordd_process_set_ranks(worker, first, ranks, kRanks, &count),
              COORDD_INVALID_ARGUMENT, "does not exist");
  CheckSums(second, expected);
  CheckSums(Add(name, pair, 2), expected); /* the name is free again */
}

/* Rank 3 is in none of them, and waits for nobody; requests of all ranks keep their order. */
static void TestBesideRequestsOfAllRanks(void) {
  const int32_t three[] = {2, 0, 1}, all[] = {0, 1, 2, 3}, even[] = {0, 2};
  int32_t set = 0;
  if (rank < 3) CheckSums(Add("three", three, 3), 6);
  CHECK_OK(coordd_process_set_add(worker, even, 2, 10, &set));
  CheckSums(Add("all", all, kRanks), 10);
  CHECK_OK(coordd_process_set_remove(worker, set, 10));
}

static void TestDifferentRanksUnderOneName(void) {
  const int32_t ranks[] = {0, 1, 2};
  const int32_t* own = rank == 1 ? ranks + 1 : ranks;
  int32_t set = 0;
  if (rank == 3) return;
  CHECK_ERROR(coordd_process_set_add_members(worker, "mixed", own, rank == 1 ? 2 : 3, 10, &set),
              COORDD_INVALID_ARGUMENT, "[0, 1, 2]");
  CHECK(strstr(coordd_last_error(), "[1, 2]") != NULL);
  CHECK(strstr(coordd_last_error(), "rank 1") != NULL);
}

static void TestAMemberThatDoesNotAsk(void) {
  const int32_t pair[] = {0, 1};
  int32_t set = 0;
  if (rank == 0) {
    CHECK_ERROR(coordd_process_set_add_members(worker, "alone", pair, 2, 0.2, &set),
                COORDD_DEADLINE_EXCEEDED, "not made by rank 1");
  }
  CHECK_OK(coordd_barrier(worker, NULL, NULL));
  /* It hears why nobody waits any more; then both begin anew. */
  if (rank == 1) {
    CHECK_ERROR(coordd_process_set_add_members(worker, "alone", pair, 2, 10, &set),
                COORDD_CANCELLED, "rank 0 withdrew it");
  }
  CHECK_OK(coordd_barrier(worker, NULL, NULL));
  if (rank < 2) CheckSums(Add("alone", pair, 2), 3);
}

/* What a set with its comm takes once there has been one: printed, and bounded generously. */
static void TestTime(void) {
  const int32_t pair[] = {0, 1};
  enum { kTimes = 20 };
  struct timespec begin, end;
  double total_ms = 0;
  int i;
  if (rank > 1) return;
  CHECK(timespec_get(&begin, TIME_UTC) == TIME_UTC);
  for (i = 0; i < kTimes; ++i) {
    char name[32];
    coordd_comm_t* comm = NULL;
    snprintf(name, sizeof name, "timed %d", i);
    CHECK_OK(coordd_comm_create(worker, Add(name, pair, 2), "c", 10, &comm));
    coordd_comm_free(comm);
  }
  CHECK(timespec_get(&end, TIME_UTC) == TIME_UTC);
  total_ms =
      (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
  if (rank == 0) printf("a set with its comm: %.2f ms\n", total_ms / kTimes);
  CHECK(total_ms < 20e3);
}

int main(void) {
  CHECK_OK(coordd_worker_start(NULL, &worker));
  rank = coordd_rank(worker);
  CHECK(coordd_size(worker) == kRanks);
  TestRefused();
  TestPairs();
  TestBesideRequestsOfAllRanks();
  TestDifferentRanksUnderOneName();
  TestAMemberThatDoesNotAsk();
  TestTime();
  CHECK_OK(coordd_barrier(worker, NULL, NULL)); /* who leaves ends the generation for all */
  CHECK_OK(coordd_worker_shutdown(worker, 10));
  coordd_worker_destroy(worker);
  printf("c_api_named_sets_test: all good on rank %d of %d\n", rank, kRanks);
  return 0;
}
