"""Collectives that reduce."""

from typing import Any, List

import torch
from torch._C import _distributed_c10d as c10d

from coordd.torch.distributed._calls import Calls, misplaced, on_gpu, plain, plain_on_gpu, profiling, require_one, write_back
from coordd.torch.distributed._ops import Reduction, check_reducible, dense, flat_real, reduction_of

_SMALL_BYTES = 64 * 1024  # what is copied into one buffer rather than reduced in several calls
_SUM = reduction_of(torch.distributed.ReduceOp.SUM)


class Reductions(Calls):
    """Mixin of a group."""

    def _reduce_dense(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """In place; on the lane."""
        if reduction.native is None:
            everyone = tensor.new_empty((self._size_, *tensor.shape))
            self._channel.allgather(everyone, tensor)
            tensor.copy_(everyone[0])
            for other in everyone[1:]:
                reduction.combine(tensor, other, out=tensor)
            return
        if reduction.factor is not None:
            tensor.mul_(reduction.factor)
        address, count, dtype = flat_real(tensor)
        self._channel.allreduce(tensor, address, count, dtype, reduction.native)

    def _reduce_one(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        if tensor.is_sparse:  # its indices are not those of what detach() gives
            self._reduce_sparse(tensor, reduction)
        elif tensor.numel():
            tensor = tensor.detach()
            own = dense(tensor)
            self._reduce_dense(own, reduction)
            write_back(own, tensor)

    def _reduce_sparse(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Like gloo: the sum has each index once, but says that it may not."""
        if reduction.op != _SUM.op:
            raise ValueError(f"all_reduce of sparse tensors with {reduction.op}: expected SUM")
        own = tensor.coalesce()
        indices, values = own.indices().contiguous(), own.values().contiguous()
        counts = torch.empty(self._size_, dtype=torch.int64)
        self._channel.allgather(counts, torch.tensor([indices.size(1)]))
        most = int(counts.max())
        all_indices = torch.zeros((self._size_, indices.size(0), most), dtype=torch.int64)
        all_values = values.new_zeros((self._size_, most, *values.shape[1:]))
        if most:
            padded_indices, padded_values = all_indices[0].clone(), all_values[0].clone()
            padded_indices[:, :indices.size(1)], padded_values[:values.size(0)] = indices, values
            self._channel.allgather(all_indices, padded_indices)
            if values.numel() or padded_values.numel():
                self._channel.allgather(all_values, padded_values)
        number = counts.tolist()
        total = torch.sparse_coo_tensor(torch.cat([all_indices[one][:, :number[one]] for one in range(self._size_)], 1),
                                        torch.cat([all_values[one][:number[one]] for one in range(self._size_)]),
                                        tensor.shape).coalesce()
        tensor.copy_(total)
        if tensor.is_coalesced():
            tensor._coalesced_(False)

    def _reduce_several(self, tensors: List[torch.Tensor], reduction: Reduction) -> None:
        plain = len(tensors) > 1 and all(not one.is_sparse and one.dtype == tensors[0].dtype for one in tensors)
        if plain and sum(one.numel() * one.element_size() for one in tensors) <= _SMALL_BYTES:
            together = torch.cat([one.detach().reshape(-1) for one in tensors])
            self._reduce_dense(together, reduction)
            for one, part in zip(tensors, together.split([one.numel() for one in tensors])):
                one.detach().copy_(part.view(one.shape))
            return
        for one in tensors:
            self._reduce_one(one, reduction)

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = c10d.AllreduceOptions()):
        reduction = reduction_of(opts.reduceOp)
        if len(tensors) == 1 and reduction.direct and not profiling():
            tensor = tensors[0]
            dtype = self._fast_dtypes.get(tensor.dtype)
            if dtype is not None and plain(tensor):
                if self._blocks(opts):
                    return self._allreduce_now(tensor, reduction)
                address = tensor.data_ptr()
                started = self._start_seen(tensor, tensors, "allreduce", address, address, tensor.numel(), dtype, reduction.direct)
                if started is not None:
                    return started
            elif dtype is not None and plain_on_gpu(tensor):
                return self._enqueued(self._gpu.allreduce_one(tensor, dtype, reduction.direct, tensors))
        is_on_gpu = on_gpu("all_reduce", tensors)
        for tensor in tensors:
            check_reducible(tensor, reduction)
        if is_on_gpu:
            return self._enqueue("all_reduce", self._gpu.allreduce, tensors, reduction, tensors)
        return self._submit("all_reduce", lambda: self._reduce_several(tensors, reduction), tensors, opts)

    def _allreduce_now(self, tensor: torch.Tensor, reduction: Reduction):
        """The short way of a call that blocks: nothing is queued when nothing is before it."""
        lane = self._lane
        if not lane.lock.acquire(False):
            return self._submit("all_reduce", lambda: self._reduce_one(tensor, reduction), [tensor], None)
        try:
            if lane.idle():
                self._sequence += 1
                self._channel.allreduce(tensor, tensor.data_ptr(), tensor.numel(), self._fast_dtypes[tensor.dtype],
                                        reduction.native or 0)
                return self._done
        finally:
            lane.lock.release()
        return self._submit("all_reduce", lambda: self._reduce_one(tensor, reduction), [tensor], None)

    def allreduce_coalesced(self, tensors, opts=c10d.AllreduceCoalescedOptions()):
        return self.allreduce(tensors, opts)

    def allreduce_sparse(self, tensors, opts=c10d.AllreduceOptions()):
        return self.allreduce(tensors, opts)

    def reduce(self, tensors, opts=c10d.ReduceOptions()):
        tensor, root, reduction = require_one("reduce", tensors), opts.rootRank, reduction_of(opts.reduceOp)
        self._require_rank("reduce", "root", root)
        check_reducible(tensor, reduction)
        if on_gpu("reduce", tensors):
            return self._enqueue("reduce", self._gpu.reduce, tensor, root, reduction, tensors)

        def run():
            own = tensor.detach().clone(memory_format=torch.contiguous_format)
            if own.numel():
                self._reduce_dense(own, reduction)
            if self._rank_ == root:
                tensor.detach().copy_(own)

        return self._submit("reduce", run, tensors, opts)

    def _reduce_scatter_one(self, output: torch.Tensor, input_: torch.Tensor, reduction: Reduction) -> None:
        if not input_.numel():
            return
        if reduction.native is None:
            own = input_.clone(memory_format=torch.contiguous_format)
            self._reduce_dense(own, reduction)
            output.copy_(own.view(self._size_, *output.shape)[self._rank_])
            return
        into, out_of = dense(output), dense(input_)
        if reduction.factor is not None:
            out_of = out_of * reduction.factor
        elif misplaced(into, out_of, self._rank_):
            out_of = out_of.clone()
        _, count, dtype = flat_real(into)
        self._channel.reducescatter(into, out_of, dtype, reduction.native, count)
        write_back(into, output)

    def reduce_scatter_single(self, output, input_, opts=c10d.ReduceScatterOptions()):
        return self.reduce_scatter_single_coalesced([output], [input_], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        reduction = reduction_of(opts.reduceOp)
        if len(outputs) == 1 and reduction.direct and not profiling() and plain_on_gpu(outputs[0], inputs[0]):
            self._require_blocks("reduce_scatter", inputs[0], outputs[0])
            dtype = self._fast_dtypes.get(outputs[0].dtype)
            work = None if dtype is None else self._gpu.reduce_scatter_one(outputs[0], inputs[0], dtype, reduction.direct, outputs)
            if work is not None:
                return self._enqueued(work)
        is_on_gpu = on_gpu("reduce_scatter", outputs, inputs)
        for output, input_ in zip(outputs, inputs):
            check_reducible(input_, reduction)
            self._require_blocks("reduce_scatter", input_, output)
        if is_on_gpu:
            return self._enqueue("_reduce_scatter_base", self._gpu.reduce_scatter, outputs, inputs, reduction, outputs)
        if len(outputs) == 1 and reduction.native is not None and reduction.factor is None and self._channel.order is None \
                and plain(outputs[0]) and plain(inputs[0]) and not misplaced(outputs[0], inputs[0], self._rank_):
            _, count, dtype = flat_real(outputs[0].detach())
            started = self._start((outputs[0], inputs[0]), outputs, opts, "reducescatter", inputs[0].data_ptr(), outputs[0].data_ptr(),
                                  count, dtype, reduction.native)
            if started is not None:
                return started

        def run():
            for output, input_ in zip(outputs, inputs):
                self._reduce_scatter_one(output.detach(), input_.detach(), reduction)

        return self._submit("_reduce_scatter_base", run, outputs, opts)

    def reduce_scatter(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        reduction = reduction_of(opts.reduceOp)
        is_on_gpu = on_gpu("reduce_scatter", outputs, *inputs)
        for output, parts in zip(outputs, inputs):
            check_reducible(output, reduction)
            self._require_length("reduce_scatter", "inputs", parts)
        if is_on_gpu:
            return self._enqueue("reduce_scatter", self._gpu.reduce_scatter_lists, outputs, inputs, reduction, outputs)

        def run():
            for output, parts in zip(outputs, inputs):
                if len({part.numel() for part in parts}) == 1:
                    stacked = torch.stack([part.detach().reshape(-1) for part in parts])
                    own = output.new_empty(output.numel())
                    self._reduce_scatter_one(own, stacked.view(-1), reduction)
                    output.detach().copy_(own.view(output.shape))
                    continue
                flat = torch.cat([part.detach().reshape(-1) for part in parts])
                self._reduce_dense(flat, reduction)
                at = sum(part.numel() for part in parts[:self._rank_])
                output.detach().copy_(flat[at:at + output.numel()].view(output.shape))

        return self._submit("reduce_scatter", run, outputs, opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
