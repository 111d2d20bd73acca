// The part of UCX that coordd calls, from the library that is opened at run time. Types and numbers
// are of UCX's headers. What these define themselves (UCS_PTR_IS_ERR and its like) calls nothing;
// ucp_init does, and is not used: libcoordd.so is not linked with UCX, so that a function that is
// called past the table does not link. (io; only where UCX is built in)
#pragma once

#include <ucp/api/ucp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/environment.h"
#include "common/machine/ucx_library.h"
// Its macros are of no use here.
#include <ucs/debug/log_def.h>

namespace coordd {

// Members are named as UCX's functions, less "ucp_" and "ucs_".
struct UcxFunctions {
  UcxVersion version;  // of the library that they are of
  decltype(&ucp_config_read) config_read = nullptr;
  decltype(&ucp_config_modify) config_modify = nullptr;
  decltype(&ucp_config_release) config_release = nullptr;
  decltype(&ucp_init_version) init_version = nullptr;
  decltype(&ucp_cleanup) cleanup = nullptr;
  decltype(&ucp_worker_create) worker_create = nullptr;
  decltype(&ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&ucp_worker_progress) worker_progress = nullptr;
  decltype(&ucp_worker_flush_nbx) worker_flush_nbx = nullptr;
  decltype(&ucp_ep_create) ep_create = nullptr;
  decltype(&ucp_ep_flush_nbx) ep_flush_nbx = nullptr;
  decltype(&ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler = nullptr;
  decltype(&ucp_am_send_nbx) am_send_nbx = nullptr;
  decltype(&ucp_am_recv_data_nbx) am_recv_data_nbx = nullptr;
  decltype(&ucp_am_data_release) am_data_release = nullptr;
  decltype(&ucp_request_check_status) request_check_status = nullptr;
  decltype(&ucp_request_cancel) request_cancel = nullptr;
  decltype(&ucp_request_free) request_free = nullptr;
  decltype(&ucs_status_string) status_string = nullptr;
  decltype(&ucs_log_push_handler) log_push_handler = nullptr;

  // UNAVAILABLE "UCX: CALL: what UCX says".
  absl::Status Error(absl::string_view call, ucs_status_t status) const;
};

// Loads UCX as OpenUcx does, with its errors; NOT_FOUND also names functions that the library
// lacks.
absl::StatusOr<UcxFunctions> LoadUcx(const Environment& environment);

}  // namespace coordd
