#include "client/coordrun/coordinator/run_target.h"

#include "common/base/token_file.h"

namespace coordd {

Target TargetOf(const Rendezvous& rendezvous) {
  Target target{.address = rendezvous.address, .tls = rendezvous.launcher_tls};
  if (!rendezvous.token_file.empty())
    target.token = ReadTokenFile("coordrun", rendezvous.token_file).value_or("");
  return target;
}

}  // namespace coordd
