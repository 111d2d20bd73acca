"""Collectives that only move data."""

from typing import List, Sequence

import torch
from torch._C import _distributed_c10d as c10d

from coordd.torch.distributed._calls import Calls, misplaced, on_gpu, plain, plain_on_gpu, profiling, require_one, write_back
from coordd.torch.distributed._ops import dense


# From this size on the blocks of a scatter and of a gather go to their ranks, and to nobody else.
_LARGE_BLOCK_BYTES = 64 << 10
_FIRST_TAG = -(1 << 62)  # of such calls; no program's, whose tags are of 32 bits


def _is_large(block: torch.Tensor) -> bool:
    return block.numel() * block.element_size() >= _LARGE_BLOCK_BYTES


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements one after the other, as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _row_bytes(tensor: torch.Tensor, rows: Sequence[int]) -> List[int]:
    """Of parts with so many rows."""
    one = tensor.numel() // tensor.size(0) * tensor.element_size() if tensor.numel() else 0
    return [count * one for count in rows]


class Exchanges(Calls):
    """Mixin of a group."""

    _large_calls = 0  # scatters and gathers whose blocks are messages

    def _next_tag(self) -> int:
        """Of each such call another one: what is left of one that failed is nobody's. All ranks count alike, in the order of the
        group's calls."""
        self._large_calls += 1
        return _FIRST_TAG + self._large_calls

    # --- from one

    def broadcast(self, tensors, opts=c10d.BroadcastOptions()):
        root = opts.rootRank
        self._require_rank("broadcast", "root", root)
        if len(tensors) == 1 and plain_on_gpu(tensors[0]) and not profiling():
            return self._enqueued(self._gpu.broadcast_one(tensors[0], root, tensors))
        is_on_gpu = on_gpu("broadcast", tensors)
        if is_on_gpu:
            return self._enqueue("broadcast", self._gpu.broadcast, tensors, root, tensors)
        if len(tensors) == 1 and plain(tensors[0]):
            started = self._start(tensors[0], tensors, opts, "broadcast", *self._channel.broadcast_of(tensors[0], root))
            if started is not None:
                return started

        def run():
            for tensor in tensors:
                self._broadcast_one(tensor.detach(), root)

        return self._submit("broadcast", run, tensors, opts)

    def _broadcast_one(self, tensor: torch.Tensor, root: int) -> None:
        if tensor.is_sparse:
            raise ValueError("broadcast of a sparse tensor: expected a dense one")
        if tensor.numel():
            own = dense(tensor)
            self._channel.broadcast(own, root)
            if self._rank_ != root:
                write_back(own, tensor)

    def scatter(self, outputs, input_lists, opts=c10d.ScatterOptions()):
        output, root = require_one("scatter", outputs), opts.rootRank
        self._require_rank("scatter", "root", root)
        if self._rank_ == root:
            if len(input_lists) != 1:
                raise ValueError(f"scatter: {len(input_lists)} lists of inputs on the root: expected one")
            self._require_length("scatter", "inputs", input_lists[0])
        elif len(input_lists):
            raise ValueError(f"scatter: {len(input_lists)} lists of inputs on rank {self._rank_}, which is not the root: expected none")
        if on_gpu("scatter", outputs, *input_lists):
            return self._enqueue("scatter", self._gpu.scatter, output, [part for parts in input_lists for part in parts], root, outputs)

        def run():
            if _is_large(output):
                return self._scatter_blocks(output.detach(), [part.detach() for parts in input_lists for part in parts], root)
            everything = output.detach().new_empty((self._size_, *output.shape))
            if self._rank_ == root:
                for block, part in zip(everything, input_lists[0]):
                    block.copy_(part.detach().reshape(block.shape))
            self._broadcast_one(everything, root)
            output.detach().copy_(everything[self._rank_])

        return self._submit("scatter", run, outputs, opts)

    def _scatter_blocks(self, output: torch.Tensor, parts: List[torch.Tensor], root: int) -> None:
        tag = self._next_tag()
        if self._rank_ != root:
            own = dense(output)
            self._channel.await_messages("scatter", [(self._channel.receive(own, root, tag), own, root)], receives=True)
            return write_back(own, output)
        sent = [(rank, dense(part)) for rank, part in enumerate(parts) if rank != root]
        messages = [(self._channel.send(part, rank, tag), part, rank) for rank, part in sent]
        output.copy_(parts[root].reshape(output.shape))
        self._channel.await_messages("scatter", messages, receives=False)

    # --- to one, or to all

    def gather(self, output_lists, inputs, opts=c10d.GatherOptions()):
        input_, root = require_one("gather", inputs), opts.rootRank
        self._require_rank("gather", "root", root)
        if self._rank_ == root:
            if len(output_lists) != 1:
                raise ValueError(f"gather: {len(output_lists)} lists of outputs on the root: expected one")
            self._require_length("gather", "outputs", output_lists[0])
        elif len(output_lists):
            raise ValueError(f"gather: {len(output_lists)} lists of outputs on rank {self._rank_}, which is not the root: expected none")
        if on_gpu("gather", inputs, *output_lists):
            outputs = [output for one in output_lists for output in one]
            return self._enqueue("gather", self._gpu.gather, outputs, input_, root, output_lists)

        def run():
            if _is_large(input_):
                return self._gather_blocks([output.detach() for outputs in output_lists for output in outputs], input_.detach(), root)
            everyone = input_.detach().new_empty((self._size_, *input_.shape))
            self._allgather_one(everyone, input_.detach())
            if self._rank_ == root:
                for output, part in zip(output_lists[0], everyone):
                    output.detach().copy_(part.view(output.shape))

        return self._submit("gather", run, output_lists, opts)

    def _gather_blocks(self, outputs: List[torch.Tensor], input_: torch.Tensor, root: int) -> None:
        tag = self._next_tag()
        if self._rank_ != root:
            own = dense(input_)
            return self._channel.await_messages("gather", [(self._channel.send(own, root, tag), own, root)], receives=False)
        received = [(output, dense(output), rank) for rank, output in enumerate(outputs) if rank != root]
        messages = [(self._channel.receive(own, rank, tag), own, rank) for _, own, rank in received]
        outputs[root].copy_(input_.reshape(outputs[root].shape))
        self._channel.await_messages("gather", messages, receives=True)
        for output, own, _ in received:
            write_back(own, output)

    def _allgather_one(self, output: torch.Tensor, input_: torch.Tensor) -> None:
        if not input_.numel():
            return
        into = output if output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
        own = dense(input_)
        self._channel.allgather(into, own.clone() if misplaced(own, into, self._rank_) else own)
        write_back(into, output)

    def all_gather_single(self, output, input_, opts=c10d.AllgatherOptions()):
        return self.all_gather_single_coalesced([output], [input_], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        if len(outputs) == 1 and plain_on_gpu(outputs[0], inputs[0]) and not profiling():
            self._require_blocks("all_gather", outputs[0], inputs[0])
            work = self._gpu.allgather_one(outputs[0], inputs[0], outputs)
            if work is not None:
                return self._enqueued(work)
        is_on_gpu = on_gpu("all_gather", outputs, inputs)
        for output, input_ in zip(outputs, inputs):
            self._require_blocks("all_gather", output, input_)
        if is_on_gpu:
            return self._enqueue("_all_gather_base", self._gpu.allgather, outputs, inputs, outputs)
        if len(outputs) == 1 and self._channel.order is None and plain(outputs[0]) and plain(inputs[0]) \
                and not misplaced(inputs[0], outputs[0], self._rank_):
            started = self._start((outputs[0], inputs[0]), outputs, opts, "allgather",
                                  *self._channel.allgather_of(outputs[0], inputs[0]))
            if started is not None:
                return started

        def run():
            for output, input_ in zip(outputs, inputs):
                self._allgather_one(output.detach(), input_.detach())

        return self._submit("_all_gather_base", run, outputs, opts)

    def allgather(self, output_lists, inputs, opts=c10d.AllgatherOptions()):
        if len(output_lists) != len(inputs):
            raise ValueError(f"all_gather: {len(output_lists)} lists of outputs for {len(inputs)} inputs: expected as many")
        is_on_gpu = on_gpu("all_gather", inputs, *output_lists)
        for outputs, input_ in zip(output_lists, inputs):
            self._require_length("all_gather", "outputs", outputs)
            for output in outputs:
                if output.dtype != input_.dtype:
                    raise ValueError(f"all_gather: an output of {output.dtype} for an input of {input_.dtype}: invalid tensor type")
        if is_on_gpu:
            return self._enqueue("all_gather", self._gpu.allgather_lists, output_lists, inputs, output_lists)

        def run():
            for outputs, input_ in zip(output_lists, inputs):
                self._allgather_list([one.detach() for one in outputs], input_.detach())

        return self._submit("all_gather", run, output_lists, opts)

    def _allgather_list(self, outputs: List[torch.Tensor], input_: torch.Tensor) -> None:
        if len({output.numel() for output in outputs}) == 1:
            everyone = input_.new_empty((self._size_, input_.numel()))
            self._allgather_one(everyone, input_)
            for output, part in zip(outputs, everyone):
                output.copy_(part.view(output.shape))
            return
        for root, output in enumerate(outputs):  # of different sizes, which everybody knows
            part = input_.contiguous() if root == self._rank_ else torch.empty_like(output, memory_format=torch.contiguous_format)
            self._broadcast_one(part, root)
            output.copy_(part.view(output.shape))

    def allgather_coalesced(self, output_lists, inputs, opts=c10d.AllgatherOptions()):
        # One list for each rank here, for each tensor in allgather.
        return self.allgather([list(row) for row in zip(*output_lists)], inputs, opts)

    # --- from all to all

    def all_to_all_single(self, output, input_, output_splits, input_splits, opts=c10d.AllToAllOptions()):
        is_on_gpu = on_gpu("all_to_all", [output], [input_])
        sent = self._splits("input", input_, input_splits)
        received = self._splits("output", output, output_splits)
        if is_on_gpu:
            return self._enqueue("all_to_all", self._gpu.exchange, output.detach(), input_.detach(), sent, received, [output])

        def run():
            into, out_of = output.detach(), dense(input_.detach())
            own = dense(into)
            self._channel.alltoall(own, out_of, _row_bytes(out_of, sent), _row_bytes(own, received))
            write_back(own, into)

        return self._submit("all_to_all", run, [output], opts)

    def _splits(self, role: str, tensor: torch.Tensor, splits: Sequence[int]) -> List[int]:
        """Rows for each rank."""
        rows = tensor.size(0) if tensor.dim() else 0
        if not splits:
            if rows % self._size_:
                raise ValueError(f"all_to_all: {rows} rows of the {role} without splits: tensor's dim 0 does not divide equally "
                                 f"across group size {self._size_}")
            return [rows // self._size_] * self._size_
        if len(splits) != self._size_ or sum(splits) != rows:
            raise ValueError(f"all_to_all: {role} splits {list(splits)}: expected {self._size_} numbers that add up to {rows}: split "
                             "sizes do not match total dim 0 size")
        return list(splits)

    def alltoall(self, outputs, inputs, opts=c10d.AllToAllOptions()):
        is_on_gpu = on_gpu("all_to_all", outputs, inputs)
        self._require_length("all_to_all", "outputs", outputs)
        self._require_length("all_to_all", "inputs", inputs)
        if is_on_gpu:
            return self._enqueue("all_to_all", self._gpu.alltoall, outputs, inputs, outputs)

        def run():
            out_of = torch.cat([_bytes_of(one) for one in inputs])
            sizes = [one.numel() * one.element_size() for one in outputs]
            into = torch.empty(sum(sizes), dtype=torch.uint8)
            self._channel.alltoall(into, out_of, [one.numel() * one.element_size() for one in inputs], sizes)
            for output, part in zip(outputs, into.split(sizes)):
                if output.numel():
                    output.detach().copy_(part.clone().view(output.dtype).view(output.shape))

        return self._submit("all_to_all", run, outputs, opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single
