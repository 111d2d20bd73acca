// A rank of `coordd-bench collectives --device cuda`: collectives of coordd on GPU memory beside
// the same calls of NCCL alone, in the same process, on the same stream, in turns.
//
// Times are the device's: both begin when the device has all that belongs to them, so that they
// tell what coordd adds there (waiting for the program's stream, packing, the gate, the event), and
// nothing of how long it takes to agree that a tensor is ready, which is host_us and wait_us.
// Arguments: smallest and largest buffer in bytes, seconds of each cell, bits of the operations; or
// `launches`: how long the host takes to bring an allreduce onto the device in the steady state, in
// which nobody asks coordd, beside the call of a blocking communicator.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/collectives/board.h"
#include "bench/gpu/bare_nccl.h"
#include "bench/gpu/device_clock.h"
#include "coordd/coordd.h"

namespace coordd::bench {
namespace {

constexpr int kWarmups = 5;  // until NCCL has connected all that it connects lazily
constexpr int kRoundsMin = 5, kRoundsMax = 200;
constexpr int64_t kLargeBytes = int64_t{64} << 20;
constexpr size_t kSmallTensors = 100;
constexpr int64_t kSmallBytes = 64 << 10;
// Steps until a schedule is in force, and those that are timed.
constexpr int kUnscheduled = 100, kLaunches = 400;
constexpr int64_t kLaunchBytes = 4096;

void RequireOk(coordd_status_t status, const char* what) {
  Require(status == COORDD_OK, std::string(what) + ": " + coordd_last_error());
}

double NowUs() {
  return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count()) / 1e3;
}

struct Times {
  std::vector<double> bare_us, ours_us, host_us, wait_us;
};

class GpuRank {
 public:
  explicit GpuRank(const Environment& environment) {
    RequireOk(coordd_worker_start(nullptr, &worker_), "start");
    rank_ = coordd_rank(worker_);
    size_ = coordd_size(worker_);
    device_ = std::make_unique<DeviceClock>(coordd_local_rank(worker_));
    const auto share = [this](void* bytes, int64_t count) {
      coordd_tensor_t tensor = COORDD_TENSOR_INIT;
      tensor.name = "id";
      tensor.dtype = COORDD_UINT8;
      tensor.input = tensor.output = bytes;
      tensor.shape = &count;
      tensor.ndim = 1;
      RequireOk(coordd_broadcast(worker_, &tensor, 0, nullptr, nullptr), "broadcast of the id");
    };
    nccl_ = std::make_unique<BareNccl>(environment, *device_, rank_, size_, share);
  }
  ~GpuRank() {
    nccl_.reset();
    device_.reset();
    coordd_worker_destroy(worker_);
  }

  void MeasureAll(int64_t bytes_min, int64_t bytes_max, double seconds, uint32_t operations) {
    seconds_ = seconds;
    input_ = device_->NewBuffer(bytes_max);
    output_ = device_->NewBuffer(bytes_max);
    for (const Operation operation : {kAllreduce, kAllgather, kBroadcast, kReduceScatter}) {
      if ((operations >> operation & 1) == 0) continue;
      for (int64_t bytes = bytes_min; bytes <= bytes_max; bytes *= 4)
        if (bytes >= int64_t{4} * size_) Measure(operation, bytes);
    }
    if ((operations >> kAllreduce & 1) != 0) MeasureManySmall();
    if (rank_ == 0) MeasurePacking(std::min(bytes_max, kLargeBytes));
    Leave();
  }

  void MeasureLaunches() {
    const int64_t count = kLaunchBytes / int64_t{sizeof(float)};
    input_ = device_->NewBuffer(kLaunchBytes);
    output_ = device_->NewBuffer(kLaunchBytes);
    device_->Fill(input_, count, 1);
    std::vector<double> submitted_us, enqueued_us, bare_us;
    for (int i = -kUnscheduled; i < kLaunches; ++i) {
      Times ours;
      Ours(kAllreduce, count, &ours);
      device_->Synchronize();
      const double begin = NowUs();
      Bare(kAllreduce, count);
      const double bare = NowUs() - begin;
      device_->Synchronize();
      if (i < 0) continue;
      submitted_us.push_back(ours.host_us.front());
      enqueued_us.push_back(ours.host_us.front() + ours.wait_us.front());
      bare_us.push_back(bare);
    }
    PrintBar("host time of an allreduce of 4096 bytes by schedule, p50", At(submitted_us, 0.5),
             " us", 10, true);
    const char* const what =
        "time from submission to enqueued of an allreduce of 4096 bytes by schedule";
    PrintBar((std::string(what) + ", p50").c_str(), At(enqueued_us, 0.5), " us", 15, true);
    PrintBar((std::string(what) + ", p99").c_str(), At(enqueued_us, 0.99), " us", 60, true);
    if (rank_ == 0)
      std::printf(
          "# the same call of a blocking communicator, beside it: p50 %.2f us, p99 %.2f us\n",
          At(bare_us, 0.5), At(bare_us, 0.99));
    Leave();
  }

 private:
  static double At(std::vector<double> values, double quantile) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(quantile * static_cast<double>(values.size() - 1))];
  }
  void Leave() {
    RequireOk(coordd_barrier(worker_, nullptr, nullptr), "barrier");
    RequireOk(coordd_worker_shutdown(worker_, 10), "shutdown");
  }

  coordd_tensor_t Tensor(const char* name, const float* input, float* output,
                         const int64_t* count) const {
    coordd_tensor_t tensor = COORDD_TENSOR_INIT;
    tensor.name = name;
    tensor.dtype = COORDD_FLOAT32;
    tensor.input = input;
    tensor.output = output;
    tensor.shape = count;
    tensor.ndim = 1;
    tensor.device_kind = COORDD_CUDA;
    tensor.device_index = device_->device();
    tensor.stream = device_->stream();
    return tensor;
  }

  coordd_work_t* Submit(Operation operation, int64_t count) {
    const int64_t given = operation == kAllgather ? count / size_ : count;
    const float* const input = operation == kBroadcast ? output_ : input_;
    coordd_tensor_t tensor = Tensor(kOperationNames[operation], input, output_, &given);
    tensor.output_capacity_bytes = count * int64_t{sizeof(float)};
    coordd_work_t* work = nullptr;
    switch (operation) {
      case kAllreduce:
        RequireOk(coordd_allreduce_async(worker_, &tensor, COORDD_SUM, nullptr, &work), "submit");
        break;
      case kAllgather:
        RequireOk(coordd_allgather_async(worker_, &tensor, nullptr, &work), "submit");
        break;
      case kBroadcast:
        RequireOk(coordd_broadcast_async(worker_, &tensor, 0, nullptr, &work), "submit");
        break;
      default:
        RequireOk(coordd_reducescatter_async(worker_, &tensor, COORDD_SUM, nullptr, &work),
                  "submit");
    }
    return work;
  }
  void Ours(Operation operation, int64_t count, Times* times) {
    const double begin = NowUs();
    coordd_work_t* const work = Submit(operation, count);
    const double submitted = NowUs();
    RequireOk(coordd_work_wait_on_stream(work, device_->stream(), -1), "wait");
    coordd_work_release(work);
    if (times == nullptr) return;
    times->host_us.push_back(submitted - begin);
    times->wait_us.push_back(NowUs() - submitted);
  }
  void Bare(Operation operation, int64_t count) {
    switch (operation) {
      case kAllreduce:
        return nccl_->Allreduce(input_, output_, count);
      case kAllgather:
        return nccl_->Allgather(input_, output_, count);
      case kBroadcast:
        return nccl_->Broadcast(output_, count);
      default:
        return nccl_->ReduceScatter(input_, output_, count);
    }
  }

  // Once each, with every rank's number: the sum, the numbers in order, rank 0's.
  void CheckResult(Operation operation, int64_t count, bool ours) {
    const float own = static_cast<float>(rank_ + 1);
    device_->Fill(input_, count, own);
    device_->Fill(output_, count, own);
    Meet();
    if (ours) {
      Ours(operation, count, nullptr);
    } else {
      Bare(operation, count);
    }
    const bool scattered = operation == kReduceScatter;
    const auto [first, last] = device_->Ends(output_, scattered ? count / size_ : count);
    const auto ranks = static_cast<float>(size_);
    const float sum = ranks * (ranks + 1) / 2;
    const bool reduces = operation == kAllreduce || scattered;
    const float expected_first = reduces ? sum : 1;
    const float expected_last = reduces ? sum : operation == kAllgather ? ranks : 1;
    Require(first == expected_first && last == expected_last,
            std::string(kOperationNames[operation]) + " of " + std::to_string(count) +
                " elements: wrong result" + (ours ? "" : " of NCCL"));
  }

  // Both take part in the other's delays, so the ranks begin together.
  void Meet() { RequireOk(coordd_barrier(worker_, nullptr, nullptr), "barrier"); }
  int RoundsOf(double once_us) {
    // Rank 0 decides for all.
    int32_t rounds = std::clamp(static_cast<int>(seconds_ * 1e6 / std::max(once_us, 1.0)),
                                kRoundsMin, kRoundsMax);
    coordd_tensor_t tensor = COORDD_TENSOR_INIT;
    tensor.name = "rounds";
    tensor.dtype = COORDD_INT32;
    tensor.input = tensor.output = &rounds;
    RequireOk(coordd_broadcast(worker_, &tensor, 0, nullptr, nullptr), "broadcast");
    return rounds;
  }

  template <typename BareCall, typename OurCall>
  Times InTurns(const BareCall& bare, const OurCall& ours) {
    for (int i = 0; i < kWarmups; ++i) {
      bare();
      ours(nullptr);
    }
    device_->Synchronize();
    Meet();
    const int rounds = RoundsOf(device_->Time(bare) * 2 + 100);
    Times times;
    for (int i = 0; i < rounds; ++i) {
      Meet();
      times.bare_us.push_back(device_->Time(bare));
      Meet();
      times.ours_us.push_back(device_->Time([&] { ours(&times); }));
    }
    return times;
  }

  void Print(const char* operation, int64_t bytes, const Times& times) const {
    if (rank_ != 0) return;
    const double bare = Median(times.bare_us), ours = Median(times.ours_us);
    std::printf("%s,%d,%lld,%zu,%.2f,%.2f,%.3f,%.2f,%.2f,%.2f\n", operation, size_,
                static_cast<long long>(bytes), times.bare_us.size(), bare, ours,
                bare > 0 ? ours / bare : 0, ours - bare, Median(times.host_us),
                Median(times.wait_us));
    std::fflush(stdout);
  }
  // What has to be known of every figure: "" or "; ...".
  const char* Caveat() const {
    if (size_ == 1) return "; one rank: NCCL launches nothing";
    if (size_ > device_->runtime().device_count()) return "; ranks share a GPU: time slices";
    return "";
  }
  // `at_most`: the value is to be no larger than the bar, else no smaller.
  void PrintBar(const char* what, double value, const char* unit, double bar, bool at_most) const {
    if (rank_ != 0) return;
    std::printf("# %s: %.2f%s (bar: at %s %.2f%s) %s\n", what, value, unit,
                at_most ? "most" : "least", bar, Caveat(),
                (at_most ? value <= bar : value >= bar) ? "met" : "MISSED");
    std::fflush(stdout);
  }

  void Measure(Operation operation, int64_t bytes) {
    const int64_t count = bytes / int64_t{sizeof(float)} / size_ * size_;
    for (const bool ours : {false, true}) CheckResult(operation, count, ours);
    const Times times = InTurns([&] { Bare(operation, count); },
                                [&](Times* noted) { Ours(operation, count, noted); });
    Print(kOperationNames[operation], bytes, times);
    if (operation != kAllreduce) return;
    const double bare = Median(times.bare_us), ours = Median(times.ours_us);
    const std::string size = " of an allreduce of " + std::to_string(bytes) + " bytes";
    PrintBar(("host time" + size).c_str(), Median(times.host_us), " us", 10, true);
    if (bytes < kLargeBytes) {
      PrintBar(("time added on the device" + size).c_str(), ours - bare, " us", 5, true);
    } else {
      PrintBar(("device time over bare NCCL's" + size).c_str(), ours / bare, "", 1.02, true);
    }
  }

  // 100 tensors of 64 KiB: ours packs them, NCCL has them in one group.
  void MeasureManySmall() {
    const int64_t count = kSmallBytes / int64_t{sizeof(float)};
    std::vector<float*> buffers;
    std::vector<std::string> names;
    std::vector<coordd_tensor_t> tensors;
    for (size_t i = 0; i < kSmallTensors; ++i) {
      buffers.push_back(device_->NewBuffer(kSmallBytes));
      device_->Fill(buffers.back(), count, 0);
      names.push_back("small" + std::to_string(i));
    }
    for (size_t i = 0; i < kSmallTensors; ++i)
      tensors.push_back(Tensor(names[i].c_str(), buffers[i], buffers[i], &count));
    std::vector<coordd_work_t*> works(kSmallTensors);
    const auto bare = [&] {
      nccl_->Grouped([&] {
        for (float* buffer : buffers) nccl_->Allreduce(buffer, buffer, count);
      });
    };
    const auto ours = [&](Times* times) {
      const double begin = NowUs();
      RequireOk(coordd_grouped_allreduce_async(worker_, "small", tensors.data(), tensors.size(),
                                               COORDD_SUM, nullptr, works.data()),
                "submit a group");
      const double submitted = NowUs();
      for (coordd_work_t* work : works) {
        RequireOk(coordd_work_wait_on_stream(work, device_->stream(), -1), "wait");
        coordd_work_release(work);
      }
      if (times == nullptr) return;
      times->host_us.push_back(submitted - begin);
      times->wait_us.push_back(NowUs() - submitted);
    };
    const Times times = InTurns(bare, ours);
    Print("allreduce of 100 tensors", kSmallBytes * int64_t{kSmallTensors}, times);
    PrintBar("one group of NCCL's over 100 tensors of 64 KiB fused",
             Median(times.bare_us) / std::max(Median(times.ours_us), 1e-3), " times", 1.5, false);
  }

  // As many tensors as a launch takes, packed into one buffer, beside a copy of as many bytes.
  void MeasurePacking(int64_t bytes) {
    constexpr int64_t kTensors = DeviceKernels::kRowsPerLaunch;
    const int64_t part = bytes / kTensors / 16 * 16;
    if (part == 0) return;
    std::vector<DeviceRow> pack, unpack;
    auto* const from = reinterpret_cast<std::byte*>(input_);
    auto* const to = reinterpret_cast<std::byte*>(output_);
    for (int64_t i = 0; i < kTensors; ++i) {
      pack.push_back(
          {from + i * part, to + (kTensors - 1 - i) * part, static_cast<uint64_t>(part)});
      unpack.push_back({pack.back().to, const_cast<void*>(pack.back().from), pack.back().count});
    }
    const auto copy = [&] {
      Require(CopyAsync(device_->runtime(), device_->device(), to, from, part * kTensors,
                        device_->stream())
                  .ok(),
              "copy");
    };
    const auto median = [&](const std::function<void()>& run) {
      run();
      device_->Synchronize();
      std::vector<double> us;
      for (int i = 0; i < 20; ++i) us.push_back(device_->Time(run));
      return Median(std::move(us));
    };
    const double copy_us = median(copy);
    const auto share = [&](const std::vector<DeviceRow>& rows) {
      const double us =
          median([&] { Require(device_->kernels().Copy(rows, device_->stream()).ok(), "pack"); });
      return copy_us / std::max(us, 1e-3);
    };
    std::printf("# copy on the device: %.1f GB/s of %lld bytes\n",
                static_cast<double>(part * kTensors) / std::max(copy_us, 1e-3) / 1e3,
                static_cast<long long>(part * kTensors));
    PrintBar("packing, of the copy's bandwidth", share(pack), "", 0.8, false);
    PrintBar("unpacking, of the copy's bandwidth", share(unpack), "", 0.8, false);
  }

  coordd_worker_t* worker_ = nullptr;
  int32_t rank_ = 0, size_ = 1;
  std::unique_ptr<DeviceClock> device_;
  std::unique_ptr<BareNccl> nccl_;
  float* input_ = nullptr;
  float* output_ = nullptr;
  double seconds_ = 0.1;
};

}  // namespace
}  // namespace coordd::bench

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "launches") {
    coordd::bench::GpuRank(coordd::ReadEnvironment()).MeasureLaunches();
    return 0;
  }
  if (argc != 5) {
    std::fprintf(stderr, "%s: is started by `coordd-bench collectives --device cuda`\n", argv[0]);
    return 2;
  }
  coordd::bench::GpuRank rank(coordd::ReadEnvironment());
  rank.MeasureAll(std::atoll(argv[1]), std::atoll(argv[2]), std::atof(argv[3]),
                  static_cast<uint32_t>(std::atoi(argv[4])));
  return 0;
}
