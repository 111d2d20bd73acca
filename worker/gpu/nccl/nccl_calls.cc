#include "worker/gpu/nccl/nccl_calls.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/gpu/nccl/nccl_operator.h"

namespace coordd {
namespace {

using Blocks = std::vector<int64_t>;

bool AllEqual(const Blocks& blocks) {
  return std::adjacent_find(blocks.begin(), blocks.end(), std::not_equal_to<>()) == blocks.end();
}

// The first error of the group; the group is closed in any case.
template <typename Calls>
NcclResult GroupOf(const NcclFunctions& nccl, Calls calls) {
  NcclResult result = nccl.GroupStart();
  if (result != NcclResult::kSuccess) return result;
  result = calls();
  const NcclResult ended = nccl.GroupEnd();
  return result == NcclResult::kSuccess ? ended : result;
}

// What a call needs besides the buffers.
class Enqueuer {
 public:
  Enqueuer(const NcclFunctions& nccl, const CollectiveArgs& args, int32_t self, NcclComm comm,
           CudaStream stream)
      : nccl_(nccl), args_(args), self_(self), comm_(comm), stream_(stream) {}

  // REQUIRES: the kind reduces.
  NcclResult Allreduce(const void* input, void* output, size_t bytes, NcclReduction by) const {
    return nccl_.AllReduce(input, output, Count(bytes), by.type, by.op, comm_, stream_);
  }
  NcclResult Reduce(NcclReduction by) const {
    return nccl_.Reduce(args_.input.data(), args_.output.data(), Count(args_.input.size()), by.type,
                        by.op, ToInt(args_.root), comm_, stream_);
  }
  NcclResult Broadcast() const {
    return nccl_.Broadcast(args_.output.data(), args_.output.data(), args_.output.size(),
                           NcclType::kUint8, ToInt(args_.root), comm_, stream_);
  }
  NcclResult Allgather() const {
    if (AllEqual(args_.output_block_bytes)) {
      return nccl_.AllGather(args_.input.data(), args_.output.data(), args_.input.size(),
                             NcclType::kUint8, comm_, stream_);
    }
    return Grouped([this] { return BroadcastBlocks(); });
  }
  NcclResult ReduceScatter(NcclReduction by) const {
    if (AllEqual(args_.input_block_bytes)) {
      return nccl_.ReduceScatter(args_.input.data(), args_.output.data(),
                                 Count(args_.output.size()), by.type, by.op, comm_, stream_);
    }
    return Grouped([this, by] { return ReduceBlocks(by); });
  }
  // alltoall and gather; what is empty on one side is empty on the other.
  NcclResult Exchange() const {
    return Grouped([this] {
      NcclResult result = SendBlocks();
      return result == NcclResult::kSuccess ? ReceiveBlocks() : result;
    });
  }

 private:
  size_t Count(size_t bytes) const { return bytes / static_cast<size_t>(SizeOf(args_.dtype)); }

  template <typename Calls>
  NcclResult Grouped(Calls calls) const {
    return GroupOf(nccl_, calls);
  }

  NcclResult BroadcastBlocks() const {
    std::byte* block = args_.output.data();
    for (size_t r = 0; r < args_.output_block_bytes.size(); ++r) {
      const size_t bytes = static_cast<size_t>(args_.output_block_bytes[r]);
      const std::byte* from = static_cast<int32_t>(r) == self_ ? args_.input.data() : block;
      const NcclResult result = bytes == 0 ? NcclResult::kSuccess
                                           : nccl_.Broadcast(from, block, bytes, NcclType::kUint8,
                                                             static_cast<int>(r), comm_, stream_);
      if (result != NcclResult::kSuccess) return result;
      block += bytes;
    }
    return NcclResult::kSuccess;
  }

  NcclResult ReduceBlocks(NcclReduction by) const {
    const std::byte* block = args_.input.data();
    for (size_t r = 0; r < args_.input_block_bytes.size(); ++r) {
      const size_t bytes = static_cast<size_t>(args_.input_block_bytes[r]);
      void* to = static_cast<int32_t>(r) == self_ ? args_.output.data() : nullptr;
      const NcclResult result = bytes == 0 ? NcclResult::kSuccess
                                           : nccl_.Reduce(block, to, Count(bytes), by.type, by.op,
                                                          static_cast<int>(r), comm_, stream_);
      if (result != NcclResult::kSuccess) return result;
      block += bytes;
    }
    return NcclResult::kSuccess;
  }

  NcclResult SendBlocks() const {
    if (args_.kind == CollectiveKind::kGather) {
      if (args_.input.empty()) return NcclResult::kSuccess;
      return nccl_.Send(args_.input.data(), args_.input.size(), NcclType::kUint8, ToInt(args_.root),
                        comm_, stream_);
    }
    const std::byte* block = args_.input.data();
    for (size_t r = 0; r < args_.input_block_bytes.size(); ++r) {
      const size_t bytes = static_cast<size_t>(args_.input_block_bytes[r]);
      if (bytes == 0) continue;
      const NcclResult result =
          nccl_.Send(block, bytes, NcclType::kUint8, static_cast<int>(r), comm_, stream_);
      if (result != NcclResult::kSuccess) return result;
      block += bytes;
    }
    return NcclResult::kSuccess;
  }

  NcclResult ReceiveBlocks() const {
    std::byte* block = args_.output.data();
    for (size_t r = 0; r < args_.output_block_bytes.size(); ++r) {
      const size_t bytes = static_cast<size_t>(args_.output_block_bytes[r]);
      if (bytes == 0) continue;
      const NcclResult result =
          nccl_.Recv(block, bytes, NcclType::kUint8, static_cast<int>(r), comm_, stream_);
      if (result != NcclResult::kSuccess) return result;
      block += bytes;
    }
    return NcclResult::kSuccess;
  }

  const NcclFunctions& nccl_;
  const CollectiveArgs& args_;
  const int32_t self_;
  const NcclComm comm_;
  const CudaStream stream_;
};

// Whether nobody of the group has anything to move. Alltoall and gather do not know of others.
bool NothingToMove(const CollectiveArgs& args) {
  switch (args.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
    case CollectiveKind::kReducescatter:
      return args.input.empty();
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kAllgather:
      return args.output.empty();
    default:
      return false;
  }
}

}  // namespace

absl::Status EnqueueCollective(const NcclFunctions& nccl, NcclCommunicator& communicator,
                               const CollectiveArgs& args, std::byte* scratch, CudaStream stream) {
  if (NothingToMove(args)) return absl::OkStatus();
  const auto reduction = NcclReductionOf(args.dtype, args.op);
  return communicator.Call(absl::StrCat("NCCL's ", Name(args.kind)), [&](NcclComm comm) {
    const NcclOperator op(nccl, comm,
                          reduction.value_or(NcclReduction{NcclType::kUint8, NcclOp::kMax}),
                          args.input_factor, communicator.place().size);
    if (op.result() != NcclResult::kSuccess) return op.result();
    const NcclReduction by = op.get();
    const Enqueuer enqueue(nccl, args, communicator.place().rank, comm, stream);
    switch (args.kind) {
      case CollectiveKind::kAllreduce:
        return enqueue.Allreduce(args.input.data(), args.output.data(), args.input.size(), by);
      case CollectiveKind::kReduce:
        return enqueue.Reduce(by);
      case CollectiveKind::kBroadcast:
        return enqueue.Broadcast();
      case CollectiveKind::kAllgather:
        return enqueue.Allgather();
      case CollectiveKind::kReducescatter:
        return enqueue.ReduceScatter(by);
      case CollectiveKind::kAlltoall:
      case CollectiveKind::kGather:
        return enqueue.Exchange();
      default:
        // A barrier: nobody's four bytes come before the last rank's do. (Its dtype is a byte.)
        return enqueue.Allreduce(scratch, scratch, 4, by);
    }
  });
}

namespace {

// `equal` over the slices and `rest` over what is behind them, where there is any of it.
template <typename Equal, typename Rest>
absl::Status EnqueueSlices(const NcclFunctions& nccl, NcclCommunicator& communicator,
                           absl::string_view name, const NcclRanges& slices, Equal equal,
                           Rest rest) {
  const auto size = static_cast<size_t>(communicator.place().size);
  const size_t in_slices = static_cast<size_t>(slices.slice_bytes) * size;
  const size_t left = slices.output.size() - in_slices;
  return communicator.Call(name, [&](NcclComm comm) {
    if (left == 0) return equal(comm);
    if (in_slices == 0) return rest(comm, in_slices, left);
    return GroupOf(nccl, [&] {
      const NcclResult result = equal(comm);
      return result == NcclResult::kSuccess ? rest(comm, in_slices, left) : result;
    });
  });
}

}  // namespace

absl::Status EnqueueReduceToSlices(const NcclFunctions& nccl, NcclCommunicator& communicator,
                                   const NcclRanges& slices, CudaStream stream) {
  const NcclReduction by = *NcclReductionOf(slices.dtype, slices.op);
  const auto element = static_cast<size_t>(SizeOf(slices.dtype));
  const int32_t self = communicator.place().rank;
  const int32_t last = communicator.place().size - 1;
  return EnqueueSlices(
      nccl, communicator, "NCCL's reducescatter within the node", slices,
      [&](NcclComm comm) {
        return nccl.ReduceScatter(
            slices.input.data(), slices.output.data() + self * slices.slice_bytes,
            static_cast<size_t>(slices.slice_bytes) / element, by.type, by.op, comm, stream);
      },
      [&](NcclComm comm, size_t offset, size_t bytes) {
        std::byte* const to = self == last ? slices.output.data() + offset : nullptr;
        return nccl.Reduce(slices.input.data() + offset, to, bytes / element, by.type, by.op, last,
                           comm, stream);
      });
}

absl::Status EnqueueGatherOfSlices(const NcclFunctions& nccl, NcclCommunicator& communicator,
                                   const NcclRanges& slices, CudaStream stream) {
  const int32_t self = communicator.place().rank;
  const int32_t last = communicator.place().size - 1;
  return EnqueueSlices(
      nccl, communicator, "NCCL's allgather within the node", slices,
      [&](NcclComm comm) {
        return nccl.AllGather(slices.output.data() + self * slices.slice_bytes,
                              slices.output.data(), static_cast<size_t>(slices.slice_bytes),
                              NcclType::kUint8, comm, stream);
      },
      [&](NcclComm comm, size_t offset, size_t bytes) {
        std::byte* const at = slices.output.data() + offset;
        return nccl.Broadcast(at, at, bytes, NcclType::kUint8, last, comm, stream);
      });
}

}  // namespace coordd
