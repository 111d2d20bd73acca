"""Collectives on memory of a GPU: named operations of the library, over NCCL, which follow what torch's current stream has been given
and which no thread waits for. Ranks name them by counting, since all members of a group call them in one order."""

import collections
import threading
from ctypes import c_int32, c_int64, c_size_t
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from coordd import _native
from coordd.exceptions import CoorddError
from coordd.torch._streams import place_on_device
from coordd.torch._submit import size_bytes
from coordd.torch.distributed._channel import Channel
from coordd.torch.distributed._gpu_works import GpuMessage, GpuWork, await_device
from coordd.torch.distributed._ops import Reduction, dense, flat_real

_BYTES = 1  # coordd_dtype_t: who only moves does not look at the dtype
# Calls that look alike share this many names, and wait for the one before of their name to be on the device. Few, since what repeats
# within few steps is executed without asking coordd.
_TURNS = 2
_MOST_NAMES = 1024  # of calls that look alike; what has other sizes each time shares one
_NO_BYTES: Dict[torch.device, torch.Tensor] = {}  # an address for what has none


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


class _UnderWay(NamedTuple):
    """What the device may not be through with."""

    native: _native.Work
    tensors: Sequence[torch.Tensor]
    names: Sequence[str]


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Call:
    """One call of torch's, while it is made: operations of the library, the tensors that they use, what is enqueued behind them."""

    def __init__(self, gpu: "GpuCalls", name: str, tensors: Sequence[torch.Tensor]):
        self._gpu, self._name, self._device = gpu, name, tensors[0].device
        self.kept: List[torch.Tensor] = list(tensors)
        self.behind: List[Callable[[], Any]] = []
        self._names: List[str] = []
        self._pointers: List[Optional[int]] = []

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.kept.append(tensor)
        return tensor

    def add(self, function: str, alike: Tuple[Any, ...], out_of: int, into: int, count: int, dtype: int, capacity: int,
            *arguments: Any) -> None:
        """`alike`: of calls with one name, equal on all members. `count` elements of `out_of`; `capacity`: bytes of `into`."""
        channel = self._gpu.channel
        self._names.append(self._gpu.name(function, alike))
        prepared = _native.Prepared(self._names[-1], [count], dtype)
        prepared.words[_native.INPUT_WORD] = out_of
        prepared.words[_native.OUTPUT_WORD] = into
        prepared.words[_native.CAPACITY_WORD] = capacity
        place_on_device(prepared.structure, self.kept[0])
        self._pointers.append(channel.submit(function, prepared, channel.set, *arguments))

    def work(self, result: Any) -> GpuWork:
        work = GpuWork(self._pointers, self._name, result, self._device, self.kept, self._gpu.channel.timeout_s, self.behind)
        self._gpu.hold(_UnderWay(work.native, self.kept, self._names))
        return work

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
        self._lock = threading.Lock()
        self._counts: Dict[Any, int] = collections.Counter()
        self._under_way: Deque[_UnderWay] = collections.deque()
        self._users: Dict[int, _native.Work] = {}  # by memory: the collective under way that was called last with it
        self._named: Dict[str, _native.Work] = {}

    # --- what all have in common

    def name(self, function: str, alike: Tuple[Any, ...]) -> str:
        with self._lock:
            key: Any = (function, *alike)
            if key not in self._counts and len(self._counts) >= _MOST_NAMES:
                key = (function,)
            self._counts[key] += 1
            name = "/".join(map(str, ("torch.gpu", *key, self._counts[key] % _TURNS)))
            before = self._named.get(name)
        if before is not None and not before.done():
            self._come_behind(before)
        return name

    def hold(self, one: _UnderWay) -> None:
        """Until the device is through, also where nobody waits."""
        with self._lock:
            self._under_way.append(one)
            self._users.update((_memory_of(tensor), one.native) for tensor in one.tensors if one.names)
            self._named.update((name, one.native) for name in one.names)
            while self._under_way and self._under_way[0].native.done():
                self._forget(self._under_way.popleft())

    def _forget(self, one: _UnderWay) -> None:
        for memory in map(_memory_of, one.tensors):
            if self._users.get(memory) is one.native:
                del self._users[memory]
        for name in one.names:
            if self._named.get(name) is one.native:
                del self._named[name]

    def finish(self) -> None:
        """Until the device is through with all collectives; a message waits for its peer's call. Failures are those of whoever waits
        for the works."""
        for one in list(self._under_way):
            if one.names:
                await_device(one.native)

    @staticmethod
    def _come_behind(native: _native.Work) -> None:
        """Has the current stream wait for it, once it is on the device."""
        try:
            native.wait()
        except CoorddError:
            pass  # for who waits for its work

    def _follow(self, tensors: Sequence[torch.Tensor]) -> None:
        """Calls with the same memory come one behind the other, also where the program does not wait between them."""
        with self._lock:
            before = {id(native): native for native in map(self._users.get, map(_memory_of, tensors)) if native is not None}
        for native in before.values():
            self._come_behind(native)

    def _call(self, name: str, *lists: Sequence[torch.Tensor]) -> _Call:
        tensors = [tensor.detach() for tensors in lists for tensor in tensors]
        for tensor in tensors:
            if tensor.is_sparse:
                raise ValueError(f"{name}: a sparse tensor on {tensor.device}: expected a dense one, or one in host memory")
        self._follow(tensors)
        return _Call(self, name, tensors)

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
            call.add("coordd_allreduce_async", alike, address, target.data_ptr(), count, dtype, size, c_int32(reduction.native))
        else:
            call.add("coordd_reduce_async", alike, address, target.data_ptr(), count, dtype, size,
                     c_int32(self.channel.job_rank(root)), c_int32(reduction.native))

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
                 size_bytes(into), c_int32(reduction.native))
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
            return call.work(result)

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
            return call.work(result)

    # --- between two

    def send(self, name: str, tensor: torch.Tensor, destination: int, result: Any) -> GpuMessage:
        self._follow([tensor])
        return self._message("coordd_send_async", name, dense(tensor.detach()), destination, result, [], -1)

    def receive(self, name: str, tensor: torch.Tensor, source: int, result: Any) -> GpuMessage:
        self._follow([tensor])
        target = tensor.detach()
        own = target if target.is_contiguous() else torch.empty_like(target, memory_format=torch.contiguous_format)
        return self._message("coordd_receive_async", name, own, source, result, [] if own is target else [lambda: target.copy_(own)], source)

    def _message(self, function: str, name: str, own: torch.Tensor, peer: int, result: Any, behind: List[Callable[[], Any]],
                 source: int) -> GpuMessage:
        channel = self.channel
        prepared = _native.Prepared(channel.name_between(name), [size_bytes(own)], _BYTES)
        prepared.words[_native.INPUT_WORD] = prepared.words[_native.OUTPUT_WORD] = _address(own)
        place_on_device(prepared.structure, own)
        pointer = channel.submit(function, prepared, 0, c_int32(channel.job_rank(peer)))
        work = GpuMessage([pointer], name, result, own.device, [own], channel.timeout_s, behind, source)
        self.hold(_UnderWay(work.native, [own], []))
        return work
