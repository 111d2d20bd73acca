#include "common/machine/process_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/descriptor_limit.h"
#include "common/base/memory_limit.h"

namespace coordd {
namespace {

prometheus::Gauge& MakeGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// Seconds since 1970; 0: not to be found out.
double StartTime() {
  double boot = 0;
  std::ifstream machine("/proc/stat");
  for (std::string word; machine >> word;) {
    if (word != "btime") continue;
    machine >> boot;
    break;
  }
  std::ifstream own("/proc/self/stat");
  std::string text;
  std::getline(own, text);
  // Behind the program's name, which may contain anything: field 3 and on. The start is field 22.
  const size_t name_end = text.rfind(')');
  if (boot == 0 || name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; number < 22; ++number) fields >> field;
  double ticks = 0;
  if (!(fields >> ticks)) return 0;
  return boot + ticks / static_cast<double>(std::max(sysconf(_SC_CLK_TCK), 1L));
}

}  // namespace

ProcessMetrics::ProcessMetrics(prometheus::Registry& registry)
    : cpu_seconds_(prometheus::BuildCounter()
                       .Name("process_cpu_seconds_total")
                       .Help("Processor time of the process, user and system.")
                       .Register(registry)
                       .Add({})),
      resident_bytes_(MakeGauge(registry, "process_resident_memory_bytes", "Memory in use.")),
      virtual_bytes_(MakeGauge(registry, "process_virtual_memory_bytes", "Address space in use.")),
      open_fds_(MakeGauge(registry, "process_open_fds", "Open file descriptors.")),
      max_fds_(MakeGauge(registry, "process_max_fds", "As many as may be open.")) {
  MakeGauge(registry, "process_start_time_seconds",
            "When the process started, in seconds since 1970.")
      .Set(StartTime());
}

void ProcessMetrics::Update() {
  rusage used = {};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    MutexLock lock(&mu_);
    const double now = Seconds(used.ru_utime) + Seconds(used.ru_stime);
    cpu_seconds_.Increment(std::max(0.0, now - told_cpu_seconds_));
    told_cpu_seconds_ = std::max(now, told_cpu_seconds_);
  }
  resident_bytes_.Set(static_cast<double>(ResidentBytes()));
  virtual_bytes_.Set(static_cast<double>(MappedBytes()));
  const Descriptors descriptors = CountDescriptors();
  open_fds_.Set(static_cast<double>(descriptors.in_use));
  max_fds_.Set(static_cast<double>(descriptors.max));
}

}  // namespace coordd
