// What submitting costs the thread that submits: an asynchronous allreduce alone, and per tensor of
// a group. One of the workers of a job:
//
//     coordrun -np 2 -- submit_cost [tensors per step] [steps]
//
// Prints medians over the steps on rank 0: time on the clock, and of the thread's own CPU, which is
// what remains where ranks do not share cores.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "coordd/coordd.h"

namespace {

void Check(coordd_status_t status) {
  if (status == COORDD_OK) return;
  std::fprintf(stderr, "submit_cost: %s\n", coordd_last_error());
  std::exit(1);
}

double Microseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Time since it was made, on both clocks.
class Stopwatch {
 public:
  double wall_us() const { return Microseconds(CLOCK_MONOTONIC) - wall_; }
  double cpu_us() const { return Microseconds(CLOCK_THREAD_CPUTIME_ID) - cpu_; }

 private:
  const double wall_ = Microseconds(CLOCK_MONOTONIC);
  const double cpu_ = Microseconds(CLOCK_THREAD_CPUTIME_ID);
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The tensors of a model as a framework has them, prepared once.
struct Model {
  explicit Model(size_t count) : names(count), values(count), tensors(count), works(count) {
    static const int64_t kShape[] = {2, 2};
    for (size_t i = 0; i < count; ++i) {
      names[i] = "gradient/layer" + std::to_string(i) + ".conv.weight";
      values[i].resize(4, 1.0f);
      coordd_tensor_t tensor = COORDD_TENSOR_INIT;
      tensor.name = names[i].c_str();
      tensor.input = tensor.output = values[i].data();
      tensor.shape = kShape;
      tensor.ndim = 2;
      tensor.dtype = COORDD_FLOAT32;
      tensors[i] = tensor;
    }
  }

  std::vector<std::string> names;
  std::vector<std::vector<float>> values;
  std::vector<coordd_tensor_t> tensors;
  std::vector<coordd_work_t*> works;
};

struct Samples {
  std::vector<double> wall, cpu;

  void Add(const Stopwatch& watch, double tensors) {
    wall.push_back(watch.wall_us() / tensors);
    cpu.push_back(watch.cpu_us() / tensors);
  }
  void Print(const char* what) const {
    std::printf("%-40s %8.3f us per tensor, %8.3f us of CPU\n", what, Median(wall), Median(cpu));
  }
};

void Finish(Model& model, Samples& samples) {
  for (coordd_work_t* work : model.works) Check(coordd_work_wait(work, -1));
  const Stopwatch watch;
  for (coordd_work_t* work : model.works) coordd_work_release(work);
  samples.Add(watch, static_cast<double>(model.works.size()));
}

}  // namespace

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 161;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 200;
  if (count < 1 || steps < 1) return 2;
  coordd_worker_t* worker = nullptr;
  Check(coordd_worker_start(nullptr, &worker));
  Model model(static_cast<size_t>(count));
  Samples single, grouped, released, round;
  for (int step = 0; step < steps; ++step) {
    const Stopwatch whole;
    const Stopwatch watch;
    for (size_t i = 0; i < model.tensors.size(); ++i) {
      Check(coordd_allreduce_async(worker, &model.tensors[i], COORDD_AVERAGE, nullptr,
                                   &model.works[i]));
    }
    single.Add(watch, count);
    Finish(model, released);
    round.Add(whole, 1);
  }
  for (int step = 0; step < steps; ++step) {
    const Stopwatch watch;
    Check(coordd_grouped_allreduce_async(worker, "gradients", model.tensors.data(),
                                         model.tensors.size(), COORDD_AVERAGE, nullptr,
                                         model.works.data()));
    grouped.Add(watch, count);
    Finish(model, released);
  }
  if (coordd_rank(worker) == 0) {
    std::printf("%d tensors per step, %d ranks\n", count, coordd_size(worker));
    single.Print("allreduce_async");
    grouped.Print("grouped_allreduce_async");
    released.Print("work_release");
    round.Print("a step of single ones, per step");
  }
  Check(coordd_worker_shutdown(worker, 10));
  coordd_worker_destroy(worker);
  return 0;
}
