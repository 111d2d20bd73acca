#include "worker/transport/ucx/ucx_api.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/dynamic_library.h"
#include "common/base/status_macros.h"
#include "worker/base/function_table.h"

namespace coordd {

absl::Status UcxFunctions::Error(absl::string_view call, ucs_status_t status) const {
  return absl::UnavailableError(absl::StrCat("UCX: ", call, ": ", status_string(status)));
}

absl::StatusOr<UcxFunctions> LoadUcx(const Environment& environment) {
  COORDD_ASSIGN_OR_RETURN(const DynamicLibrary library, OpenUcx(environment));
  UcxFunctions ucx;
  COORDD_ASSIGN_OR_RETURN(ucx.version, UcxVersionOf(library));
  FunctionTable table(library);
  table.Required(ucx.config_read, "ucp_config_read");
  table.Required(ucx.config_modify, "ucp_config_modify");
  table.Required(ucx.config_release, "ucp_config_release");
  table.Required(ucx.init_version, "ucp_init_version");
  table.Required(ucx.cleanup, "ucp_cleanup");
  table.Required(ucx.worker_create, "ucp_worker_create");
  table.Required(ucx.worker_destroy, "ucp_worker_destroy");
  table.Required(ucx.worker_get_address, "ucp_worker_get_address");
  table.Required(ucx.worker_release_address, "ucp_worker_release_address");
  table.Required(ucx.worker_progress, "ucp_worker_progress");
  table.Required(ucx.worker_flush_nbx, "ucp_worker_flush_nbx");
  table.Required(ucx.ep_create, "ucp_ep_create");
  table.Required(ucx.ep_flush_nbx, "ucp_ep_flush_nbx");
  table.Required(ucx.ep_close_nbx, "ucp_ep_close_nbx");
  table.Required(ucx.worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  table.Required(ucx.am_send_nbx, "ucp_am_send_nbx");
  table.Required(ucx.am_recv_data_nbx, "ucp_am_recv_data_nbx");
  table.Required(ucx.am_data_release, "ucp_am_data_release");
  table.Required(ucx.request_check_status, "ucp_request_check_status");
  table.Required(ucx.request_cancel, "ucp_request_cancel");
  table.Required(ucx.request_free, "ucp_request_free");
  table.Required(ucx.status_string, "ucs_status_string");
  table.Required(ucx.log_push_handler, "ucs_log_push_handler");
  if (!table.missing_required().empty()) {
    return absl::NotFoundError(
        absl::StrCat("UCX has no ", absl::StrJoin(table.missing_required(), ", ")));
  }
  return ucx;
}

}  // namespace coordd
