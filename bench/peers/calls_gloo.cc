// Calls of Gloo, over TCP. Three more arguments: which rank this is, the directory in which the
// ranks find each other, and this host's address.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "bench/collectives/calls.h"

namespace coordd::bench {
namespace {

class GlooCalls final : public Calls {
 public:
  GlooCalls(int rank, int ranks, const std::string& store, const std::string& address)
      : rank_(rank),
        store_(store),
        context_(std::make_shared<gloo::rendezvous::Context>(rank_, ranks)) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = address;
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store_, device);
  }

  int32_t rank() const override { return rank_; }
  bool Has(const Cell& cell) const override {
    return cell.operation != kReduceScatter && !(cell.in_place && cell.operation == kGather);
  }
  void Leave() override { Barrier(); }

  void Run(const Cell& cell) override {
    const size_t count = static_cast<size_t>(cell.bytes) / sizeof(float);
    const size_t ranks = static_cast<size_t>(context_->size);
    const size_t blocks = count / ranks * ranks;
    switch (cell.operation) {
      case kAllreduce: {
        gloo::AllreduceOptions options(context_);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        if (!cell.in_place) options.setInput(cell.input, count);
        options.setOutput(cell.output, count);
        void (*const sum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
        options.setReduceFunction(sum);
        options.setTag(NextTag());
        return gloo::allreduce(options);
      }
      case kAllgather: {
        gloo::AllgatherOptions options(context_);
        if (!cell.in_place) options.setInput(cell.input, count / ranks);
        options.setOutput(cell.output, blocks);
        options.setTag(NextTag());
        return gloo::allgather(options);
      }
      case kBroadcast: {
        gloo::BroadcastOptions options(context_);
        options.setRoot(0);
        options.setOutput(cell.output, count);
        options.setTag(NextTag());
        return gloo::broadcast(options);
      }
      case kAlltoall: {
        gloo::AlltoallOptions options(context_);
        options.setInput(cell.input, blocks);
        options.setOutput(cell.output, blocks);
        options.setTag(NextTag());
        return gloo::alltoall(options);
      }
      case kReduce: {
        gloo::ReduceOptions options(context_);
        if (!cell.in_place) options.setInput(cell.input, count);
        options.setOutput(cell.output, count);
        void (*const sum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
        options.setReduceFunction(sum);
        options.setRoot(0);
        options.setTag(NextTag());
        return gloo::reduce(options);
      }
      case kGather: {
        gloo::GatherOptions options(context_);
        options.setInput(cell.input, count / ranks);
        if (rank_ == 0) options.setOutput(cell.output, blocks);
        options.setRoot(0);
        options.setTag(NextTag());
        return gloo::gather(options);
      }
      default:
        return Barrier();
    }
  }

 private:
  void Barrier() {
    gloo::BarrierOptions options(context_);
    options.setTag(NextTag());
    gloo::barrier(options);
  }
  uint32_t NextTag() { return tag_++ % 65536; }

  const int rank_;
  gloo::rendezvous::FileStore store_;
  const std::shared_ptr<gloo::rendezvous::Context> context_;
  uint32_t tag_ = 0;
};

}  // namespace

std::unique_ptr<Calls> Calls::Start(const CollectivesPlan& plan, int* argc, char*** argv) {
  if (*argc == 6) {
    return std::make_unique<GlooCalls>(std::atoi((*argv)[3]), plan.ranks, (*argv)[4], (*argv)[5]);
  }
  std::fprintf(stderr, "%s: BOARD NAME RANK STORE ADDRESS\n", (*argv)[0]);
  std::_Exit(2);
}

}  // namespace coordd::bench
