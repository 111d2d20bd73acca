// Which workers Prometheus should scrape.
#pragma once

#include <string>

#include "coordd/v1/admin.pb.h"

namespace coordd {

// The members that announced a metrics address, in the JSON of Prometheus's HTTP and file service
// discovery: [{"targets": ["10.0.0.7:9401"], "labels": {"instance": "train7/3", "job_name": …,
// "rank": …, "hostname": …}}]. Not "job", which is Prometheus's own name for the scrape
// configuration. The instance is the place in the job, since a worker that is started again has
// another port. Workers behind a relay are one target, whose series have the rank:
// {"__metrics_path__": "/node", "instance": "train7/node4", …}. Ordered by job and rank, so that
// equal states give equal text.
std::string PrometheusTargets(const v1::ServerState& state);

}  // namespace coordd
