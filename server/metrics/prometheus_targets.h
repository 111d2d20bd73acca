// Which workers Prometheus should scrape.
#pragma once

#include <string>

#include "coordd/v1/admin.pb.h"

namespace coordd {

// The members that announced a metrics address, in the JSON of Prometheus's HTTP and file service
// discovery: [{"targets": ["10.0.0.7:9401"], "labels": {"job_name": …, "rank": …,
// "hostname": …}}]. Not "job", which is Prometheus's own name for the scrape configuration.
// Ordered by job and rank, so that equal states give equal text.
std::string PrometheusTargets(const v1::ServerState& state);

}  // namespace coordd
