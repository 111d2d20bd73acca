"""What docs/design/nccl.md assumes of NCCL, asked of the one at hand, in a quarter of a minute; a stage of tests/gpu/run.

Two ranks on one GPU (with one, NCCL launches nothing): what an allreduce costs the thread that calls it on a blocking and on a
non-blocking communicator, and on a blocking one that was split of the latter (a direct one). Then, beside a kernel of 2 s on another stream (our gate, held): do ncclCommAbort, ncclCommDestroy and
ncclCommRevoke wait for it, and does a launch of another thread wait meanwhile? The driver and NCCL alone, by ctypes.

Usage: COORDD_NCCL_LIBRARY=PATH tests/gpu/nccl_probe.py
"""

import ctypes
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.join(HERE, "..", "..", "worker", "gpu", "cuda", "kernels.ptx")
RANK = int(os.environ.get("PROBE_RANK", "0"))
HELD_S = 2.0
PATIENCE_S = 60
CALLS = 200
COUNT = 1024
FLOAT32, SUM, IN_PROGRESS, UNDEFINED = 7, 0, 7, -2147483648
NOT_SUPPORTED = 77  # exit status: there is nothing to ask


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t of 2.18, with the traffic class that 2.26 has in its last four bytes."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int),
                ("cga", ctypes.c_int), ("ctas_min", ctypes.c_int), ("ctas_max", ctypes.c_int), ("net", ctypes.c_void_p),
                ("split", ctypes.c_int), ("traffic", ctypes.c_int)]


def opened(library):
    """Ends the process where it cannot be loaded: with NOT_SUPPORTED only where it is not there. One that is there and does not load (it
    needs another library, or a newer glibc) is a failure."""
    try:
        return ctypes.CDLL(library)
    except OSError as error:
        if str(error).startswith(f"{library}: cannot open shared object file: No such file"):
            print(f"nccl_probe: nothing to ask: {error}", flush=True)
            sys.exit(NOT_SUPPORTED)
        sys.exit(f"nccl_probe: {library} is there and cannot be loaded: {error}")


class Device:
    """The first GPU: a little memory, two streams and the gate."""

    def __init__(self):
        self.driver = opened("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.enter()
        self.memory = [ctypes.c_uint64(), ctypes.c_uint64()]
        for memory in self.memory:
            self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4 * COUNT))
        self.stream, self.other = self.new_stream(), self.new_stream()
        module, self.gate = ctypes.c_void_p(), ctypes.c_void_p()
        with open(KERNELS, "rb") as kernels:
            self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(kernels.read()))
        self.call("cuModuleGetFunction", ctypes.byref(self.gate), module, b"coordd_gate")
        words = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(words), ctypes.c_size_t(4096), 3)
        self.words = words.value
        self.event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(self.event), 2)
        for stream in (self.stream, self.other):
            self.launch(stream, word=1)
            self.drain(stream)

    def call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        if result != 0:
            sys.exit(f"nccl_probe: {name}: error {result}")

    def enter(self):
        """For each thread."""
        self.call("cuCtxPushCurrent_v2", self.context)

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        return stream

    def set_word(self, word, value):
        ctypes.c_uint32.from_address(self.words + 4 * word).value = value

    def launch(self, stream, word):
        """The gate, which waits while the word is 1. Word 1 never is."""
        address = ctypes.c_uint64(self.words + 4 * word)
        no_limit = ctypes.c_uint64(0)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(no_limit))
        self.call("cuLaunchKernel", self.gate, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)

    def drain(self, stream):
        self.call("cuEventRecord", self.event, stream)
        deadline = time.monotonic() + PATIENCE_S
        while self.driver.cuEventQuery(self.event) != 0:
            if time.monotonic() > deadline:
                sys.exit(f"nccl_probe: the device has not come to an end within {PATIENCE_S} s")


class Nccl:
    def __init__(self, device):
        self.device = device
        library = os.environ.get("COORDD_NCCL_LIBRARY") or "libnccl.so.2"
        self.library = opened(library)
        handle, number = ctypes.c_void_p, ctypes.c_int
        self.library.ncclCommInitRankConfig.argtypes = [ctypes.POINTER(handle), number, Id, number, ctypes.POINTER(Config)]
        self.library.ncclAllReduce.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, number, number, handle, handle]
        self.library.ncclCommGetAsyncError.argtypes = [handle, ctypes.POINTER(number)]
        self.library.ncclCommSplit.argtypes = [handle, number, number, ctypes.POINTER(handle), ctypes.POINTER(Config)]
        for name in ("Abort", "Destroy", "Finalize"):
            getattr(self.library, "ncclComm" + name).argtypes = [handle]
        version = number()
        self.library.ncclGetVersion(ctypes.byref(version))
        say(f"NCCL {version.value} of {library}")

    def mint(self):
        made = Id()
        self.check(self.library.ncclGetUniqueId(ctypes.byref(made)), "ncclGetUniqueId")
        return made

    @staticmethod
    def check(result, what):
        if result not in (0, IN_PROGRESS):
            sys.exit(f"nccl_probe: rank {RANK}: {what}: result {result}")

    def ready(self, communicator):
        state = ctypes.c_int()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.check(self.library.ncclCommGetAsyncError(communicator, ctypes.byref(state)), "ncclCommGetAsyncError")
            if state.value != IN_PROGRESS:
                return self.check(state.value, "what NCCL was doing")
            if time.monotonic() > deadline:
                sys.exit(f"nccl_probe: rank {RANK}: NCCL is not ready within {PATIENCE_S} s")

    def make(self, blocking, size, identity):
        communicator = ctypes.c_void_p()
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21800, blocking, UNDEFINED, UNDEFINED, UNDEFINED, None, UNDEFINED,
                        UNDEFINED)
        begun = time.perf_counter()
        self.check(self.library.ncclCommInitRankConfig(ctypes.byref(communicator), size, identity, RANK, ctypes.byref(config)),
                   "ncclCommInitRankConfig")
        self.ready(communicator)
        say(f"init of {size}, {name_of(blocking)}: {1e3 * (time.perf_counter() - begun):.0f} ms")
        return communicator

    def split(self, origin):
        """A blocking communicator of all ranks of one that does not block, with which it shares what it can."""
        made, config = ctypes.c_void_p(), Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21800, 1, UNDEFINED, UNDEFINED, UNDEFINED, None, 1,
                                                 UNDEFINED)
        begun = time.perf_counter()
        self.check(self.library.ncclCommSplit(origin, 0, RANK, ctypes.byref(made), ctypes.byref(config)), "ncclCommSplit")
        self.ready(origin)
        self.ready(made)
        say(f"a direct one split of it: {1e3 * (time.perf_counter() - begun):.0f} ms")
        return made

    def allreduce(self, communicator):
        given, taken = self.device.memory
        return self.library.ncclAllReduce(given.value, taken.value, COUNT, FLOAT32, SUM, communicator, self.device.stream)

    def destroy(self, communicator, blocking):
        if not blocking:
            self.library.ncclCommFinalize(communicator)
            self.ready(communicator)
        return self.library.ncclCommDestroy(communicator)


def name_of(blocking):
    return "blocking" if blocking else "not blocking"


def say(text):
    if RANK == 0:
        print(text, flush=True)


def measure_calls(nccl, identities):
    for blocking in (1, 0):
        communicator = nccl.make(blocking, 2, identities[blocking])
        measure_calls_on(nccl, communicator, name_of(blocking))
        if not blocking:
            direct = nccl.split(communicator)
            in_place = measure_calls_on(nccl, direct, "direct")
            say(f"# what a direct communicator is given is on its stream when the call returns: {'yes' if in_place else 'no'} (bar: yes) "
                f"{'met' if in_place else 'MISSED'}")
            nccl.destroy(direct, blocking=0)
        nccl.destroy(communicator, blocking)


def measure_calls_on(nccl, communicator, name):
    """Whether no call was in progress when it had returned."""
    returned_us, enqueued_us, results = [], [], {}
    for _ in range(CALLS):
        begun = time.perf_counter()
        result = nccl.allreduce(communicator)
        returned_us.append(1e6 * (time.perf_counter() - begun))
        nccl.ready(communicator)
        enqueued_us.append(1e6 * (time.perf_counter() - begun))
        results[result] = results.get(result, 0) + 1
    nccl.device.drain(nccl.device.stream)
    returned_us.sort()
    enqueued_us.sort()
    say(f"allreduce of 2 ranks, {name}: the call {returned_us[CALLS // 2]:.1f} us, until it is enqueued "
        f"{enqueued_us[CALLS // 2]:.1f} us (p99 {enqueued_us[CALLS * 99 // 100]:.1f}); results {results} (7: in progress)")
    return set(results) == {0}


def ask_end(nccl, name, end):
    """Ends a communicator beside a held gate; returns whether it waited for that."""
    device = nccl.device
    communicator = nccl.make(0, 1, nccl.mint())
    nccl.check(nccl.allreduce(communicator), "ncclAllReduce")
    nccl.ready(communicator)
    device.drain(device.stream)
    device.set_word(0, 1)
    device.launch(device.other, word=0)
    begun = time.perf_counter()
    opens = threading.Timer(HELD_S, device.set_word, (0, 0))
    opens.start()
    ended = {}

    def run():
        device.enter()
        ended["result"] = end(communicator)
        ended["after_s"] = time.perf_counter() - begun

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.3)
    launched = time.perf_counter()
    device.launch(device.stream, word=1)
    launched_ms = 1e3 * (time.perf_counter() - launched)
    asked = time.perf_counter()
    device.driver.cuEventQuery(device.event)
    asked_ms = 1e3 * (time.perf_counter() - asked)
    thread.join()
    opens.join()
    device.drain(device.other)
    waits = ended["after_s"] >= HELD_S
    say(f"{name}: result {ended['result']}, {ended['after_s']:.3f} s beside a held gate of {HELD_S:.0f} s "
        f"({'WAITS for it' if waits else 'does not wait'}); meanwhile in another thread: a launch {launched_ms:.2f} ms, an event "
        f"query {asked_ms:.2f} ms")
    return waits


def ask_ends(nccl):
    library = nccl.library

    def revoke(communicator):
        result = library.ncclCommRevoke(communicator, 0)
        nccl.ready(communicator)
        return result

    ask_end(nccl, "ncclCommAbort", library.ncclCommAbort)
    ask_end(nccl, "ncclCommFinalize and ncclCommDestroy", lambda communicator: nccl.destroy(communicator, blocking=0))
    if hasattr(library, "ncclCommRevoke"):
        library.ncclCommRevoke.argtypes = [ctypes.c_void_p, ctypes.c_int]
        waits = ask_end(nccl, "ncclCommRevoke", revoke)
        say(f"# ncclCommRevoke returns while a gate is held: {'no' if waits else 'yes'} (bar: yes) {'MISSED' if waits else 'met'}")


def main():
    os.environ["NCCL_HOSTID"] = f"probe{RANK}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    nccl = Nccl(Device())
    if RANK == 1:
        # Copied, since an id is what it is by its bytes.
        measure_calls(nccl, [Id.from_buffer_copy(bytes.fromhex(text)) for text in os.environ["PROBE_IDS"].split(",")])
        os._exit(0)
    identities = [nccl.mint(), nccl.mint()]
    beside = subprocess.Popen([sys.executable, os.path.abspath(__file__)], env={
        **os.environ, "PROBE_RANK": "1", "PROBE_IDS": ",".join(bytes(identity).hex() for identity in identities)})
    try:
        measure_calls(nccl, identities)
        status = beside.wait(PATIENCE_S)
    finally:
        if beside.poll() is None:
            beside.kill()
    if status != 0:
        sys.exit(f"nccl_probe: the other rank ended with {status}")
    ask_ends(nccl)
    say("nccl_probe: done")
    sys.stdout.flush()
    os._exit(0)  # what is left of NCCL's is not to be unwound


if __name__ == "__main__":
    main()
