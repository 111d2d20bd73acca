// What torchrun gives its programs and init_process_group reads: RANK, WORLD_SIZE, MASTER_ADDR, ...
// Values in, values out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/coordrun/plan/run_options.h"
#include "common/base/environment.h"

namespace coordd {

// Which of the variables coordrun has set, with commas between them: coordd.init() corrects those
// where it is given another place, and no others.
inline constexpr char kTorchMarker[] = "COORDD_TORCH_ENV";

struct TorchPlace {
  int32_t rank = 0, size = 1;
  int32_t local_rank = 0, local_size = 1;
  int32_t group_rank = 0;  // the node's number
};

// Where rank 0's store listens.
struct TorchMaster {
  std::string address;  // empty: not known here; then nothing is said of it
  uint16_t port = 0;
};

// The variables that coordrun decides: all of them but those of -x; none with --no-torch-env.
std::vector<std::string> TorchNames(const RunOptions& options);

// The variables among `names` that are known.
Environment TorchVariables(const std::vector<std::string>& names, const TorchPlace& place,
                           const TorchMaster& master);

// The variables among `names` that say where rank 0's store is.
Environment MasterVariables(const std::vector<std::string>& names, const TorchMaster& master);

// "-x MASTER_PORT wins over what coordrun would set": empty when -x names none of them.
std::string TorchOverrides(const RunOptions& options);

}  // namespace coordd
