// Calls of an MPI library.
#include <mpi.h>

#include "bench/collectives/calls.h"

namespace coordd::bench {
namespace {

class MpiCalls final : public Calls {
 public:
  MpiCalls(int* argc, char*** argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiCalls() override { MPI_Finalize(); }

  int32_t rank() const override { return rank_; }
  bool Has(const Cell&) const override { return true; }
  void Leave() override { MPI_Barrier(MPI_COMM_WORLD); }

  bool ScattersToTheFront() const override { return true; }
  // Some libraries move bytes only inside their calls.
  void Progress() override {
    constexpr int kNobodysTag = 12345;
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, kNobodysTag, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
  }

  void Run(const Cell& cell) override {
    const int count = static_cast<int>(cell.bytes / int64_t{sizeof(float)});
    const int block = count / size_;
    const void* const input = cell.in_place ? MPI_IN_PLACE : cell.input;
    const MPI_Comm all = MPI_COMM_WORLD;
    switch (cell.operation) {
      case kAllreduce:
        MPI_Allreduce(input, cell.output, count, MPI_FLOAT, MPI_SUM, all);
        break;
      case kAllgather:
        MPI_Allgather(input, block, MPI_FLOAT, cell.output, block, MPI_FLOAT, all);
        break;
      case kBroadcast:
        MPI_Bcast(cell.output, count, MPI_FLOAT, 0, all);
        break;
      case kReduceScatter:
        MPI_Reduce_scatter_block(input, cell.output, block, MPI_FLOAT, MPI_SUM, all);
        break;
      case kAlltoall:
        MPI_Alltoall(input, block, MPI_FLOAT, cell.output, block, MPI_FLOAT, all);
        break;
      case kReduce:
        MPI_Reduce(cell.in_place && rank_ != 0 ? cell.output : input, cell.output, count, MPI_FLOAT,
                   MPI_SUM, 0, all);
        break;
      case kGather:
        MPI_Gather(cell.in_place && rank_ != 0 ? cell.output + rank_ * block : input, block,
                   MPI_FLOAT, cell.output, block, MPI_FLOAT, 0, all);
        break;
      default:
        MPI_Barrier(all);
    }
  }

 private:
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::unique_ptr<Calls> Calls::Start(const CollectivesPlan&, int* argc, char*** argv) {
  return std::make_unique<MpiCalls>(argc, argv);
}

}  // namespace coordd::bench
