// The two macros for absl::Status. Everything else about statuses is Abseil's own.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define COORDD_RETURN_IF_ERROR(expression)                                                       \
  do {                                                                                           \
    if (absl::Status coordd_status_ = (expression); !coordd_status_.ok()) return coordd_status_; \
  } while (false)

#define COORDD_STATUS_CONCAT_(a, b) a##b
#define COORDD_STATUS_CONCAT(a, b) COORDD_STATUS_CONCAT_(a, b)

// COORDD_ASSIGN_OR_RETURN(auto x, F()): `x` is the value, or the enclosing function returns the
// error.
#define COORDD_ASSIGN_OR_RETURN(lhs, expression) \
  COORDD_ASSIGN_OR_RETURN_(COORDD_STATUS_CONCAT(coordd_or_, __LINE__), lhs, expression)
#define COORDD_ASSIGN_OR_RETURN_(holder, lhs, expression) \
  auto holder = (expression);                             \
  if (!holder.ok()) return holder.status();               \
  lhs = *std::move(holder)
