/* A C11 program that leaves small values for the other members. Started by coordrun -np 2; exits 1
 * at the first wrong thing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_api_check.h"
#include "coordd/coordd.h"

static coordd_worker_t* worker = NULL;
static int rank = -1, size = -1;

static void TestStore(void) {
  char value[8] = "";
  size_t bytes = 0;
  int64_t sum = 0;
  if (rank == 0) CHECK_OK(coordd_store_set(worker, "greeting", "hello", 5, 10));
  CHECK_ERROR(coordd_store_get(worker, "greeting", value, 2, &bytes, 10), COORDD_OUT_OF_RANGE,
              "greeting");
  CHECK(bytes == 5);
  CHECK_OK(coordd_store_get(worker, "greeting", value, sizeof(value), &bytes, 10));
  CHECK(bytes == 5 && memcmp(value, "hello", 5) == 0);
  CHECK_OK(coordd_store_add(worker, "count", 2, &sum, 10));
  CHECK(sum >= 2 && sum <= 2 * size);
  CHECK_ERROR(coordd_store_set(worker, "\xff", "x", 1, 10), COORDD_INVALID_ARGUMENT,
              "is not UTF-8");
  {
    char key[257];
    memset(key, 'k', 256);
    key[249] = '\0';
    CHECK_ERROR(coordd_store_set(worker, key, "x", 1, 10), COORDD_INVALID_ARGUMENT,
                "a store key of 249 bytes: expected 1 to 248");
    key[248] = '\0';
    CHECK_OK(coordd_store_set(worker, key, "x", 1, 10));
  }
  CHECK(coordd_store_get(worker, "never", value, sizeof(value), &bytes, 0.05) ==
        COORDD_DEADLINE_EXCEEDED);
}

/* Each rank has keys of its own, so that they do not have to wait for each other. */
static void TestStoreInSteps(void) {
  char value[16] = "", first[32] = "", second[32] = "";
  size_t bytes = 0, sizes[2] = {0, 0};
  int32_t yes = -1;
  int64_t count = -1;
  const char* keys[2] = {first, second};
  snprintf(first, sizeof(first), "steps/%d/a", rank);
  snprintf(second, sizeof(second), "steps/%d/b", rank);
  CHECK_ERROR(coordd_store_compare_set(worker, first, "x", 1, "one", 3, value, 16, &bytes, 10),
              COORDD_NOT_FOUND, "is missing, a value was expected");
  CHECK_OK(coordd_store_compare_set(worker, first, NULL, 0, "one", 3, value, 16, &bytes, 10));
  CHECK(bytes == 3 && memcmp(value, "one", 3) == 0);
  CHECK_OK(coordd_store_compare_set(worker, first, NULL, 0, "two", 3, value, 16, &bytes, 10));
  CHECK(bytes == 3 && memcmp(value, "one", 3) == 0);
  CHECK_OK(coordd_store_check(worker, keys, 2, &yes, 10));
  CHECK(yes == 0);
  CHECK_OK(coordd_store_append(worker, second, "ab", 2, NULL, 10));
  CHECK_OK(coordd_store_append(worker, second, "cd", 2, &bytes, 10));
  CHECK(bytes == 4);
  CHECK_OK(coordd_store_check(worker, keys, 2, &yes, 10));
  CHECK(yes == 1);
  CHECK_ERROR(coordd_store_get_all(worker, keys, 2, value, 6, sizes, 10), COORDD_OUT_OF_RANGE,
              "have 7 bytes, the buffer 6");
  CHECK_OK(coordd_store_get_all(worker, keys, 2, value, sizeof(value), sizes, 10));
  CHECK(sizes[0] == 3 && sizes[1] == 4 && memcmp(value, "oneabcd", 7) == 0);
  snprintf(value, sizeof(value), "steps/%d/", rank);
  CHECK_OK(coordd_store_count(worker, value, &count, 10));
  CHECK(count == 2);
  CHECK_OK(coordd_store_delete(worker, first, &yes, 10));
  CHECK(yes == 1);
  CHECK_OK(coordd_store_delete(worker, first, &yes, 10));
  CHECK(yes == 0);
}

int main(void) {
  CHECK_OK(coordd_worker_start(NULL, &worker));
  rank = coordd_rank(worker);
  size = coordd_size(worker);
  TestStore();
  TestStoreInSteps();
  CHECK_OK(coordd_worker_shutdown(worker, 10));
  coordd_worker_destroy(worker);
  printf("c_api_store_test: all good on rank %d of %d\n", rank, size);
  return 0;
}
