// A program of somebody else: adds its rank to everybody's.
#include <coordd/coordd.hpp>
#include <cstdio>
#include <vector>

int main() {
  try {
    coordd::Worker worker = coordd::Worker::Start();
    std::vector<float> values = {static_cast<float>(worker.rank()), 1.0f};
    worker.Allreduce("values", coordd::View<float>(values), coordd::Op::kSum);
    std::printf("sum of ranks %g, ranks %g, version %s\n", values[0], values[1], coordd_version());
  } catch (const coordd::Error& error) {
    std::printf("%s: %s\n", error.code_name(), error.what());
    return 1;
  }
}
