/* What the C tests of the interface share. */
#ifndef COORDD_TESTS_CLIENT_C_API_CHECK_H_
#define COORDD_TESTS_CLIENT_C_API_CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordd/coordd.h"

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #condition, \
              coordd_last_error());                                                                \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define CHECK_OK(call) CHECK((call) == COORDD_OK)
#define CHECK_ERROR(call, code, text) \
  CHECK((call) == (code) && strstr(coordd_last_error(), (text)) != NULL)

#endif
