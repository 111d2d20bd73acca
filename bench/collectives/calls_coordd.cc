// Calls of coordd, by its C interface.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/collectives/calls.h"
#include "coordd/coordd.h"

namespace coordd::bench {
namespace {

// Ends the process unless it is OK.
void Check(coordd_status_t status) {
  if (status == COORDD_OK) return;
  std::fprintf(stderr, "collectives_rank: %s\n", coordd_last_error());
  std::_Exit(1);
}

class CoorddCalls final : public Calls {
 public:
  explicit CoorddCalls(const CollectivesPlan& plan)
      : path_(plan.path), registered_(plan.registered) {
    Check(coordd_worker_start(nullptr, &worker_));
    rank_ = coordd_rank(worker_);
    size_ = coordd_size(worker_);
    if (path_ == Path::kBare) Check(coordd_comm_create(worker_, 0, "bench", 0, &comm_));
  }
  ~CoorddCalls() override {
    coordd_comm_free(comm_);
    coordd_worker_destroy(worker_);
  }

  int32_t rank() const override { return rank_; }
  float* Buffer(int64_t bytes) override {
    if (!registered_) return nullptr;
    constexpr int64_t kAlignment = int64_t{2} << 20;
    void* memory = nullptr;
    Check(coordd_alloc(worker_, bytes + kAlignment, &memory));
    const uintptr_t aligned =
        (reinterpret_cast<uintptr_t>(memory) + kAlignment - 1) / kAlignment * kAlignment;
    memory = reinterpret_cast<void*>(aligned);
    // Figures of memory that nobody maps would be something else. Of a rank that is alone on its
    // node there is nobody.
    if (coordd_local_size(worker_) > 1) Check(coordd_register(worker_, memory, bytes));
    return static_cast<float*>(memory);
  }
  // Comms have no roots that gather or reduce; names have no gathering or scattering in place.
  bool Has(const Cell& cell) const override {
    if (!cell.in_place || cell.operation == kAllreduce || cell.operation == kReduce) return true;
    return path_ == Path::kBare && cell.operation != kGather;
  }
  void Run(const Cell& cell) override {
    if (path_ == Path::kBare && cell.operation != kReduce && cell.operation != kGather) {
      RunBare(cell);
    } else {
      RunNamed(cell);
    }
  }
  void Leave() override {
    Check(coordd_barrier(worker_, nullptr, nullptr));
    Check(coordd_worker_shutdown(worker_, 10));
  }

 private:
  void RunBare(const Cell& cell);
  void RunNamed(const Cell& cell);

  const Path path_;
  const bool registered_;
  coordd_worker_t* worker_ = nullptr;
  coordd_comm_t* comm_ = nullptr;
  int32_t rank_ = 0, size_ = 1;
  int64_t calls_ = 0;
  std::string name_;
};

void CoorddCalls::RunBare(const Cell& cell) {
  const int64_t count = cell.bytes / int64_t{sizeof(float)};
  const int64_t block = count / size_;
  const int64_t own = cell.in_place ? rank_ * block : 0;
  const float* const input = cell.in_place ? cell.output : cell.input;
  switch (cell.operation) {
    case kAllreduce:
      return Check(
          coordd_comm_allreduce(comm_, input, cell.output, count, COORDD_FLOAT32, COORDD_SUM));
    case kAllgather:
      return Check(coordd_comm_allgather(comm_, input + own, cell.output, block, COORDD_FLOAT32));
    case kBroadcast:
      return Check(coordd_comm_broadcast(comm_, cell.output, count, COORDD_FLOAT32, 0));
    case kReduceScatter:
      return Check(coordd_comm_reducescatter(comm_, input, cell.output + own, block, COORDD_FLOAT32,
                                             COORDD_SUM));
    case kAlltoall:
      return Check(coordd_comm_alltoall(comm_, input, cell.output, block, COORDD_FLOAT32));
    default:
      return Check(coordd_comm_barrier(comm_));
  }
}

void CoorddCalls::RunNamed(const Cell& cell) {
  const int64_t count = cell.bytes / int64_t{sizeof(float)};
  const int64_t block = count / size_;
  name_ = path_ == Path::kNegotiated ? std::to_string(++calls_) : kOperationNames[cell.operation];
  const bool gathers = cell.operation == kAllgather || cell.operation == kGather;
  const int64_t gathered = gathers ? block : count;
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = name_.c_str();
  tensor.dtype = COORDD_FLOAT32;
  tensor.input = cell.in_place || cell.operation == kBroadcast ? cell.output : cell.input;
  tensor.output = cell.output;
  tensor.output_capacity_bytes = cell.bytes;
  tensor.shape = &gathered;
  tensor.ndim = 1;
  switch (cell.operation) {
    case kAllreduce:
      return Check(coordd_allreduce(worker_, &tensor, COORDD_SUM, nullptr, nullptr));
    case kAllgather:
      return Check(coordd_allgather(worker_, &tensor, nullptr, nullptr));
    case kBroadcast:
      return Check(coordd_broadcast(worker_, &tensor, 0, nullptr, nullptr));
    case kReduceScatter:
      return Check(coordd_reducescatter(worker_, &tensor, COORDD_SUM, nullptr, nullptr));
    case kAlltoall:
      return Check(coordd_alltoall(worker_, &tensor, nullptr, 0, nullptr, nullptr));
    case kReduce:
      return Check(coordd_reduce(worker_, &tensor, 0, COORDD_SUM, nullptr, nullptr));
    case kGather:
      return Check(coordd_gather(worker_, &tensor, 0, nullptr, nullptr));
    default:
      return Check(coordd_barrier(worker_, name_.c_str(), nullptr));
  }
}

}  // namespace

std::unique_ptr<Calls> Calls::Start(const CollectivesPlan& plan, int* /*argc*/, char*** /*argv*/) {
  return std::make_unique<CoorddCalls>(plan);
}

}  // namespace coordd::bench
