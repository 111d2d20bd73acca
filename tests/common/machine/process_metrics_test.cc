#include "common/machine/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <string>
#include <vector>

#include "common/base/owned_fd.h"

namespace coordd {
namespace {

double ValueOf(const prometheus::Registry& registry, const std::string& name) {
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.name != name) continue;
    const prometheus::ClientMetric& metric = family.metric.front();
    return family.type == prometheus::MetricType::Counter ? metric.counter.value
                                                          : metric.gauge.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

TEST(ProcessMetrics, CountDescriptorsThatAreOpen) {
  prometheus::Registry registry;
  ProcessMetrics metrics(registry);
  metrics.Update();
  const double before = ValueOf(registry, "process_open_fds");
  const OwnedFd more(open("/dev/null", O_RDONLY | O_CLOEXEC));
  metrics.Update();
  EXPECT_EQ(ValueOf(registry, "process_open_fds"), before + 1);
  EXPECT_GT(ValueOf(registry, "process_max_fds"), before);
}

TEST(ProcessMetrics, CountMemoryAndProcessorTimeThatIsUsed) {
  prometheus::Registry registry;
  ProcessMetrics metrics(registry);
  metrics.Update();
  const double cpu = ValueOf(registry, "process_cpu_seconds_total");
  const double memory = ValueOf(registry, "process_resident_memory_bytes");
  const std::vector<char> used(64 << 20, 'x');  // written to, which takes time
  metrics.Update();
  EXPECT_GT(ValueOf(registry, "process_cpu_seconds_total"), cpu);
  EXPECT_GE(ValueOf(registry, "process_resident_memory_bytes"), memory + 32 * 1024 * 1024);
  EXPECT_GT(ValueOf(registry, "process_virtual_memory_bytes"),
            ValueOf(registry, "process_resident_memory_bytes"));
}

TEST(ProcessMetrics, KnowWhenTheProcessStarted) {
  prometheus::Registry registry;
  const ProcessMetrics metrics(registry);
  // Any time since this was written.
  EXPECT_GT(ValueOf(registry, "process_start_time_seconds"), 1.7e9);
}

}  // namespace
}  // namespace coordd
