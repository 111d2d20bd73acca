// What a launcher tells of a process's end: `coordctl ended`. PURE
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

struct ExitArguments {
  std::string job;
  std::string launch;  // COORDD_LAUNCH_ID of the process
  std::optional<int> status;
  std::optional<int> signal;
  bool unseen = false;
  std::string reason;
  std::vector<std::string> last_words;
  std::string hostname;
  int pid = 0;
  int rank = -1;
};

// Texts are made to fit what coordd takes: the last lines, each of them and the reason shortened.
// INVALID_ARGUMENT: not exactly one of status, signal and unseen is given.
absl::StatusOr<v1::ReportExitsRequest> ExitRequestFrom(const ExitArguments& arguments);

}  // namespace coordd
