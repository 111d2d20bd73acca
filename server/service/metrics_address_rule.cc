#include "server/service/metrics_address_rule.h"

#include <optional>

#include "common/base/log.h"
#include "common/base/one_line.h"
#include "common/net/address.h"
#include "common/protocol/node_metrics.h"
#include "server/door/read_bytes.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

bool IsOfThisMachine(const std::string& host) { return IsLoopback(host) || InterfaceOf(host).ok(); }

}  // namespace

bool MetricsAddressRule::IsOf(absl::string_view peer, const std::string& metrics_address) {
  const auto from = ParseHostPort(ReadBytes::PeerOf(peer));
  const auto served = ParseHostPort(MetricsPlaceOf(metrics_address).address);
  if (!from.ok() || !served.ok()) return false;
  return served->host == from->host ||
         (IsOfThisMachine(from->host) && IsOfThisMachine(served->host));
}

void MetricsAddressRule::Apply(absl::string_view peer, v1::Join& join) {
  if (any_ || join.metrics_address().empty()) return;
  // What is no address at all is refused by a sentence of its own.
  if (!ParseHostPort(MetricsPlaceOf(join.metrics_address()).address).ok() ||
      IsOf(peer, join.metrics_address()))
    return;
  const std::string said = OneLine(Truncated(join.metrics_address(), 64));
  join.clear_metrics_address();
  std::optional<std::string> more;
  {
    MutexLock lock(&mu_);
    more = lines_.Pass(clock_.Now());
  }
  if (!more.has_value()) return;
  COORDD_LOG(kWarning, "the metrics of a worker of job ", OneLine(Truncated(join.job(), 64)),
             " are not listed: it comes from ", ReadBytes::PeerOf(peer),
             " and says that they are at ", said,
             ", which is not its address (--any-metrics-address lists them)", *more);
}

}  // namespace coordd
