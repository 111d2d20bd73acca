"""Collectives on memory of a GPU: named operations of the library, over NCCL, which follow what torch's current stream has been given
and which no thread waits for."""

import threading
from ctypes import c_int32, c_int64, c_size_t
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from coordd import _native
from coordd.torch._streams import STREAM_WORD, place_on_device, raw_stream
from coordd.torch._submit import OPS, size_bytes
from coordd.torch.distributed._channel import Channel
from coordd.torch.distributed._gpu_names import Kinds, Turn, UnderWay, memory_of
from coordd.torch.distributed._gpu_works import Enqueued, GpuMessage, GpuWork, await_device
from coordd.torch.distributed._ops import Reduction, dense, flat_real

_BYTES = 1  # coordd_dtype_t: who only moves does not look at the dtype
_NO_BYTES: Dict[torch.device, torch.Tensor] = {}  # an address for what has none


def _told_of_graphs(error: Exception) -> Exception:
    """What the library says of a capture tells what to call for coordd.torch, whose prepare_graphs() does not concern a group's worker."""
    if "CUDA graph" not in str(error):
        return error
    return type(error)("coordd: a call of torch.distributed while its stream is captured into a CUDA graph, which groups of coordd's cannot "
                       "have there: expected calls of coordd.torch, such as allreduce_() behind prepare_graphs() [UNIMPLEMENTED]")


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() < other.data_ptr() + size_bytes(other) and other.data_ptr() < one.data_ptr() + size_bytes(one)


def _address(tensor: torch.Tensor) -> int:
    if tensor.numel():
        return tensor.data_ptr()
    if tensor.device not in _NO_BYTES:
        _NO_BYTES[tensor.device] = torch.empty(1, dtype=torch.uint8, device=tensor.device)
    return _NO_BYTES[tensor.device].data_ptr()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return dense(tensor).reshape(-1).view(torch.uint8)


def _without_graph(tensor: torch.Tensor) -> torch.Tensor:
    """For who keeps it until the device is through."""
    return tensor.detach() if tensor.requires_grad else tensor


class _Call:
    """One call of torch's, while it is made: operations of the library, the tensors that they use, what is enqueued behind them."""

    def __init__(self, gpu: "GpuCalls", name: str, tensors: Sequence[torch.Tensor], memories: Sequence[int], stream: int):
        self._gpu, self._name, self._memories, self._stream = gpu, name, memories, stream
        self.kept: List[torch.Tensor] = list(tensors)
        self.behind: List[Callable[[], Any]] = []
        self._turns: List[Turn] = []
        self._pointers: List[Optional[int]] = []

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.kept.append(tensor)
        return tensor

    def add(self, function: str, alike: Tuple[Any, ...], out_of: int, into: int, count: int, dtype: int, capacity: int,
            *arguments: Any) -> None:
        """`alike`: of calls with one name, equal on all members. `count` elements of `out_of`; `capacity`: bytes of `into`."""
        turn, pointer = self._gpu.submit(function, alike, self.kept[0], out_of, into, count, dtype, capacity, self._stream, arguments)
        self._turns.append(turn)
        self._pointers.append(pointer)

    def work(self, result: Any, received: Optional[Sequence[int]] = None) -> GpuWork:
        """`received`: bytes that are to come from each member, of an all_to_all."""
        native = Enqueued(self._pointers, self._name, self.kept, self._stream)
        self._gpu.under_way.add(native, self._memories, self._turns)
        if received is not None:
            self.behind.insert(0, lambda: self._gpu.require_received(native, received))
        return GpuWork(native, result, self._gpu.channel.timeout_s, self.behind)

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is not None and self._pointers:
            _native.keep_until_done(_native.Work(self._pointers, self._name), self.kept)


class GpuCalls:
    """Those of one group. Tensors are dense or sparse of one GPU; counts and dtypes have been compared. DistBackendError: coordd's
    sentence."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.under_way = UnderWay()
        self._submitting = threading.Lock()
        self._kinds = Kinds()

    # --- what all have in common

    def submit(self, function: str, alike: Tuple[Any, ...], tensor: torch.Tensor, out_of: int, into: int, count: int, dtype: int,
               capacity: int, stream: int, arguments: Sequence[Any]) -> Tuple[Turn, Optional[int]]:
        """As _Call.add(). Its name, and the coordd_work_t."""
        channel = self.channel
        with self._submitting:
            kind = self._kinds.of(function, alike)
            turn = kind.next()
            last = turn.last
            if last is not None and not last.done():
                last.come_before(stream)
            prepared = turn.describe(tensor, out_of, into, count, dtype, capacity, stream)
            try:
                return turn, channel.submit_prepared(kind.function, prepared, channel.set, *arguments)
            except dist.DistBackendError as error:  # type: ignore[attr-defined]
                raise _told_of_graphs(error) from None

    def require_received(self, native: _native.Work, expected: Sequence[int]) -> None:
        """DistBackendError: what came lies in other places than the program looks at. In bytes, by member; the work is enqueued."""
        members = self.channel.order or range(self.channel.size)
        wrong = [f"{came} bytes from member {one}, expected {expected[one]}"
                 for one, came in zip(members, native.result().received_splits or ()) if came != expected[one]]
        if wrong:
            raise dist.DistBackendError(  # type: ignore[attr-defined]
                f"coordd: all_to_all: member {self.channel.rank} of the group has received {'; '.join(wrong)} [INVALID_ARGUMENT]")

    def finish(self) -> None:
        """Until the device is through with all collectives; a message waits for its peer's call. Failures are those of whoever waits
        for the works."""
        for one in self.under_way.collectives():
            await_device(one)

    def _follow(self, memories: Sequence[int], stream: int) -> None:
        """Calls with the same memory come one behind the other, also where the program does not wait between them."""
        for user in self.under_way.users_of(memories):
            user.come_before(stream)

    def _call(self, name: str, *lists: Sequence[torch.Tensor]) -> _Call:
        tensors = [tensor.detach() for tensors in lists for tensor in tensors]
        for tensor in tensors:
            if tensor.is_sparse:
                raise ValueError(f"{name}: a sparse tensor on {tensor.device}: expected a dense one, or one in host memory")
        memories, stream = list(map(memory_of, tensors)), raw_stream(tensors[0].device)
        self._follow(memories, stream)
        return _Call(self, name, tensors, memories, stream)

    # --- in one operation, on tensors which the library reads and writes where they are (plain_on_gpu)

    def _one(self, function: str, name: str, alike: Tuple[Any, ...], tensors: Tuple[torch.Tensor, ...], out_of: int, into: int, count: int,
             dtype: int, capacity: int, result: Any, arguments: Sequence[Any]) -> GpuWork:
        memories, stream = tuple(map(memory_of, tensors)), raw_stream(tensors[0].device)
        self._follow(memories, stream)
        turn, pointer = self.submit(function, alike, tensors[0], out_of, into, count, dtype, capacity, stream, arguments)
        native = Enqueued((pointer,), name, tuple(map(_without_graph, tensors)), stream)
        self.under_way.add(native, memories, (turn,))
        return GpuWork(native, result, self.channel.timeout_s)

    def allreduce_one(self, tensor: torch.Tensor, dtype: int, op: int, result: Any) -> GpuWork:
        address, count = tensor.data_ptr(), tensor.numel()
        return self._one("coordd_allreduce_async", "all_reduce", (dtype, count, op), (tensor,), address, address, count, dtype,
                         count * tensor.element_size(), result, OPS[op])

    def allgather_one(self, output: torch.Tensor, input_: torch.Tensor, result: Any) -> Optional[GpuWork]:
        """None: not in this way."""
        if self.channel.order is not None or _overlap(input_, output):
            return None
        size = size_bytes(input_)
        return self._one("coordd_allgather_async", "all_gather", (size,), (input_, output), input_.data_ptr(), output.data_ptr(), size, _BYTES,
                         size * self.channel.size, result, ())

    def reduce_scatter_one(self, output: torch.Tensor, input_: torch.Tensor, dtype: int, op: int, result: Any) -> Optional[GpuWork]:
        """Likewise."""
        if self.channel.order is not None or _overlap(output, input_):
            return None
        count = output.numel()
        return self._one("coordd_reducescatter_async", "reduce_scatter", (dtype, count, op), (output, input_), input_.data_ptr(),
                         output.data_ptr(), count * self.channel.size, dtype, size_bytes(output), result, OPS[op])

    def broadcast_one(self, tensor: torch.Tensor, root: int, result: Any) -> GpuWork:
        address, size = tensor.data_ptr(), size_bytes(tensor)
        return self._one("coordd_broadcast_async", "broadcast", (size, root), (tensor,), address, address, size, _BYTES, size, result,
                         (c_int32(self.channel.job_rank(root)),))

    # --- reductions

    def allreduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction, result: Any) -> GpuWork:
        with self._call("all_reduce", tensors) as call:
            for tensor in tensors:
                self._reduce(call, tensor.detach(), reduction)
            return call.work(result)

    def _reduce(self, call: _Call, tensor: torch.Tensor, reduction: Reduction) -> None:
        if not tensor.numel():
            return
        own = call.keep(dense(tensor))
        self._reduce_dense(call, own, own, reduction, None)
        if own is not tensor:
            call.behind.append(lambda: tensor.copy_(own))

    def _reduce_dense(self, call: _Call, tensor: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: Optional[int]) -> None:
        """Into `target`, of all members or of `root`."""
        if reduction.native is None:
            everyone = call.keep(tensor.new_empty((self.channel.size, *tensor.shape)))
            self._gather(call, everyone, tensor)
            call.behind.append(lambda: target.copy_(self._combined(everyone, reduction)))
            return
        if reduction.factor is not None:
            tensor.mul_(reduction.factor)
        address, count, dtype = flat_real(tensor)
        alike, size = (dtype, count, reduction.native), size_bytes(tensor)
        if root is None:
            call.add("coordd_allreduce_async", alike, address, target.data_ptr(), count, dtype, size, *OPS[reduction.native])
        else:
            call.add("coordd_reduce_async", alike, address, target.data_ptr(), count, dtype, size,
                     c_int32(self.channel.job_rank(root)), *OPS[reduction.native])

    @staticmethod
    def _combined(everyone: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        total = everyone[0]
        for other in everyone[1:]:
            total = reduction.combine(total, other)
        return total

    def reduce(self, tensor: torch.Tensor, root: int, reduction: Reduction, result: Any) -> GpuWork:
        with self._call("reduce", [tensor]) as call:
            target = tensor.detach()
            if tensor.numel():
                own = call.keep(target.clone(memory_format=torch.contiguous_format))
                self._reduce_dense(call, own, own, reduction, root)
                if self.channel.rank == root:
                    call.behind.append(lambda: target.copy_(own))
            return call.work(result)

    def reduce_scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], reduction: Reduction, result: Any) -> GpuWork:
        """Of each pair: an input of as many blocks of the output's size as there are members."""
        with self._call("reduce_scatter", outputs, inputs) as call:
            for output, input_ in zip(outputs, inputs):
                if input_.numel():
                    self._reduce_scatter(call, output.detach(), input_.detach(), reduction)
            return call.work(result)

    def _reduce_scatter(self, call: _Call, output: torch.Tensor, input_: torch.Tensor, reduction: Reduction) -> None:
        channel = self.channel
        if reduction.native is None:
            own = call.keep(input_.clone(memory_format=torch.contiguous_format))
            self._reduce_dense(call, own, own, reduction, None)
            call.behind.append(lambda: output.copy_(own.view(channel.size, *output.shape)[channel.rank]))
            return
        out_of = dense(input_)
        if reduction.factor is not None:
            out_of = out_of * reduction.factor
        if channel.order is not None:
            out_of = out_of.reshape(channel.size, -1)[channel.order].contiguous()
        into = output if output.is_contiguous() and not _overlap(output, out_of) else torch.empty_like(
            output, memory_format=torch.contiguous_format)
        call.kept += [out_of, into]
        address, count, dtype = flat_real(into)
        call.add("coordd_reducescatter_async", (dtype, count, reduction.native), out_of.data_ptr(), address, count * channel.size, dtype,
                 size_bytes(into), *OPS[reduction.native])
        if into is not output:
            call.behind.append(lambda: output.copy_(into))

    def reduce_scatter_lists(self, outputs: Sequence[torch.Tensor], lists: Sequence[Sequence[torch.Tensor]], reduction: Reduction,
                             result: Any) -> GpuWork:
        """Of each output and its list: a tensor for each member, whose sizes may differ."""
        with self._call("reduce_scatter", outputs, *lists) as call:
            for output, parts in zip(outputs, lists):
                flat = call.keep(torch.cat([part.detach().reshape(-1) for part in parts]))
                at = sum(part.numel() for part in parts[:self.channel.rank])
                if len({part.numel() for part in parts}) == 1 and flat.numel() and output.is_contiguous():
                    self._reduce_scatter(call, output.detach().view(-1), flat, reduction)
                else:
                    self._reduce(call, flat, reduction)
                    call.behind.append(self._copied(output.detach(), flat[at:at + output.numel()]))
            return call.work(result)

    # --- what only moves

    @staticmethod
    def _copied(target: torch.Tensor, source: torch.Tensor) -> Callable[[], Any]:
        return lambda: target.copy_(source.view(target.shape))

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int, result: Any) -> GpuWork:
        with self._call("broadcast", tensors) as call:
            for tensor in tensors:
                self._broadcast(call, tensor.detach(), root)
            return call.work(result)

    def _broadcast(self, call: _Call, tensor: torch.Tensor, root: int) -> None:
        if not tensor.numel():
            return
        own, count = call.keep(dense(tensor)), size_bytes(tensor)
        call.add("coordd_broadcast_async", (count, root), own.data_ptr(), own.data_ptr(), count, _BYTES, count,
                 c_int32(self.channel.job_rank(root)))
        if own is not tensor and self.channel.rank != root:
            call.behind.append(lambda: tensor.copy_(own))

    def scatter(self, output: torch.Tensor, parts: Sequence[torch.Tensor], root: int, result: Any) -> GpuWork:
        """`parts`: those of the root; it sends all of them to everybody."""
        with self._call("scatter", [output], parts) as call:
            everything = call.keep(output.detach().new_empty((self.channel.size, *output.shape)))
            for block, part in zip(everything, parts):
                block.copy_(part.detach().reshape(block.shape))
            self._broadcast(call, everything, root)
            call.behind.append(self._copied(output.detach(), everything[self.channel.rank]))
            return call.work(result)

    def gather(self, outputs: Sequence[torch.Tensor], input_: torch.Tensor, root: int, result: Any) -> GpuWork:
        """`outputs`: those of the root, one for each member."""
        with self._call("gather", [input_], outputs) as call:
            own, size = call.keep(dense(input_.detach())), size_bytes(input_)
            if size:
                everyone = own.new_empty((self.channel.size if outputs else 1, *input_.shape))
                call.keep(everyone)
                call.add("coordd_gather_async", (size, root), own.data_ptr(), everyone.data_ptr(), size, _BYTES, size_bytes(everyone),
                         c_int32(self.channel.job_rank(root)))
                for rank, output in enumerate(outputs):
                    call.behind.append(self._copied(output.detach(), everyone[self.channel.coordd_rank(rank)]))
            return call.work(result)

    def allgather(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], result: Any) -> GpuWork:
        """Of each pair: an output of as many blocks of the input's size as there are members."""
        with self._call("all_gather", outputs, inputs) as call:
            for output, input_ in zip(outputs, inputs):
                if input_.numel():
                    self._gather(call, output.detach(), input_.detach())
            return call.work(result)

    def _gather(self, call: _Call, output: torch.Tensor, input_: torch.Tensor) -> None:
        own, order, size = dense(input_), self.channel.order, size_bytes(input_)
        if _overlap(own, output):
            own = own.clone()
        into = output if order is None and output.is_contiguous() else torch.empty_like(output, memory_format=torch.contiguous_format)
        call.kept += [own, into]
        call.add("coordd_allgather_async", (size,), own.data_ptr(), into.data_ptr(), size, _BYTES, size_bytes(into))
        if into is not output:
            call.behind.append(lambda: output.copy_(self._in_order(into)))

    def _in_order(self, blocks: torch.Tensor) -> torch.Tensor:
        """What coordd has put one behind the other in its order, in torch's."""
        if self.channel.order is None:
            return blocks
        order = [self.channel.coordd_rank(one) for one in range(self.channel.size)]
        return blocks.reshape(self.channel.size, -1)[order].view(blocks.shape)

    def allgather_lists(self, lists: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], result: Any) -> GpuWork:
        """Of each list and its input: a tensor of each member, whose sizes may differ."""
        with self._call("all_gather", inputs, *lists) as call:
            for outputs, input_ in zip(lists, inputs):
                members = self.channel.order or range(self.channel.size)
                sizes = [size_bytes(outputs[one]) for one in members]
                own = call.keep(_bytes_of(input_.detach()))
                into = call.keep(torch.empty(sum(sizes), dtype=torch.uint8, device=input_.device))
                if sum(sizes):
                    call.add("coordd_allgather_async", (), _address(own), _address(into), own.numel(), _BYTES, into.numel())
                for one, part in zip(members, into.split(sizes)):
                    call.behind.append(self._filled(outputs[one].detach(), part))
            return call.work(result)

    @staticmethod
    def _filled(target: torch.Tensor, part: torch.Tensor) -> Callable[[], Any]:
        """From bytes, which may lie anywhere."""
        def fill():
            if target.numel():
                aligned = part if part.data_ptr() % target.element_size() == 0 else part.clone()
                target.copy_(aligned.view(target.dtype).view(target.shape))
        return fill

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], result: Any) -> GpuWork:
        """A tensor for each member, of any size, which are parts of one or not."""
        with self._call("all_to_all", outputs, inputs) as call:
            members = self.channel.order or range(self.channel.size)
            sent = [size_bytes(inputs[one]) for one in members]
            received = [size_bytes(outputs[one]) for one in members]
            out_of = call.keep(torch.cat([_bytes_of(inputs[one].detach()) for one in members]))
            into = call.keep(torch.empty(sum(received), dtype=torch.uint8, device=out_of.device))
            call.add("coordd_alltoall_async", (), _address(out_of), _address(into), out_of.numel(), _BYTES, into.numel(),
                     (c_int64 * self.channel.size)(*sent), c_size_t(self.channel.size))
            for one, part in zip(members, into.split(received)):
                call.behind.append(self._filled(outputs[one].detach(), part))
            return call.work(result, [size_bytes(output) for output in outputs])

    def exchange(self, output: torch.Tensor, input_: torch.Tensor, sent: Sequence[int], received: Sequence[int], result: Any) -> GpuWork:
        """So many rows of a tensor to and from each member."""
        in_place = self.channel.order is None and output.is_contiguous() and not _overlap(output, input_)
        if not in_place:
            parts = [one.detach() for one in output.split(list(received))] if output.dim() else [output]
            return self.alltoall(parts, list(input_.split(list(sent))) if input_.dim() else [input_], result)
        with self._call("all_to_all", [output], [input_]) as call:
            own = call.keep(dense(input_.detach()))
            row = size_bytes(own) // max(own.size(0), 1)
            call.add("coordd_alltoall_async", (), _address(own), _address(output), size_bytes(own), _BYTES, size_bytes(output),
                     (c_int64 * self.channel.size)(*[rows * row for rows in sent]), c_size_t(self.channel.size))
            return call.work(result, [rows * size_bytes(output) // max(output.size(0), 1) for rows in received])

    # --- between two

    def send(self, name: str, tensor: torch.Tensor, destination: int, result: Any) -> GpuMessage:
        return self._message("coordd_send_async", name, tensor, dense(tensor.detach()), destination, result, None, -1)

    def receive(self, name: str, tensor: torch.Tensor, source: int, result: Any) -> GpuMessage:
        target = tensor.detach()
        own = target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
        behind = None if own is target else [lambda: target.copy_(own)]
        return self._message("coordd_receive_async", name, tensor, own, source, result, behind, source)

    def _message(self, function: str, name: str, tensor: torch.Tensor, own: torch.Tensor, peer: int, result: Any,
                 behind: Optional[List[Callable[[], Any]]], source: int) -> GpuMessage:
        channel, stream = self.channel, raw_stream(own.device)
        self._follow((memory_of(tensor),), stream)
        prepared = _native.Prepared(channel.name_between(name), [size_bytes(own)], _BYTES)
        prepared.words[_native.INPUT_WORD] = prepared.words[_native.OUTPUT_WORD] = _address(own)
        place_on_device(prepared.structure, own)
        prepared.words[STREAM_WORD] = stream
        pointer = channel.submit(function, prepared, 0, c_int32(channel.job_rank(peer)))
        native = Enqueued((pointer,), name, (own,), stream)
        self.under_way.add(native, (), ())
        return GpuMessage(native, result, channel.timeout_s, behind, source)
