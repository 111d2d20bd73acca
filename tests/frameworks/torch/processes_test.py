"""What needs processes of its own: Ctrl-C, a rank that is killed, a program without a coordinator, and other users of gRPC
and Protobuf in the same process."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

import processes  # noqa: E402

PREAMBLE = f"import sys; sys.path.insert(0, {os.path.join(ROOT, 'client', 'python')!r})\n"


class PythonRank(processes.Process):
    """A rank of a job that was started by nobody."""

    def __init__(self, coordinator, code, rank=0, size=1, **variables):
        super().__init__([sys.executable, "-u", "-c", PREAMBLE + code], processes.clean_environment(
            COORDD_ADDR=coordinator, COORDD_RANK=rank, COORDD_SIZE=size, PYTHONDONTWRITEBYTECODE=1,
            COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"), **variables))

    def wait_for_text(self, text):
        if not processes.wait_for(lambda: text in self.text() or not self.running()) or text not in self.text():
            raise AssertionError(f"has not said {text!r}:\n{self.text()}")


class Processes(processes.TestCase):

    def test_ctrl_c_and_the_death_of_another_rank_end_a_wait(self):
        coordd = self.coordd()
        waits = self.start(PythonRank(coordd.listen, """
import torch
import coordd.torch as hvd
from coordd import _native
hvd.init()
try:
    print("calling")
    hvd.allreduce(torch.ones(3), name="called")
except KeyboardInterrupt:
    (work, kept), = _native._kept  # which the library goes on reading and writing
    print("call interrupted, complete:", work.done(), "tensors kept:", len(kept))
handle = hvd.allreduce_async(torch.ones(3), name="lonely")
try:
    print("waiting")
    hvd.synchronize(handle)
except KeyboardInterrupt:
    print("interrupted, complete:", hvd.poll(handle))
try:
    hvd.synchronize(handle)
except hvd.HorovodInternalError as error:
    print(f"error {error.code} rank {error.rank} tensor {error.tensor}: {error}")
""", 0, 2))
        dies = self.start(PythonRank(coordd.listen, """
import time
from coordd import _basics
_basics.init()
print("here")
time.sleep(600)
""", 1, 2))
        dies.wait_for_text("here")
        waits.wait_for_text("calling")
        self.assertTrue(processes.wait_for(lambda: coordd.metric("coordd_pending_tensors") == 1))
        waits.signal(signal.SIGINT)
        waits.wait_for_text("call interrupted, complete: False tensors kept: 2")
        waits.wait_for_text("waiting")
        waits.signal(signal.SIGINT)
        waits.wait_for_text("\ninterrupted, complete: False")
        dies.signal(signal.SIGKILL)
        self.assertEqual(waits.wait(), 0, waits.text())
        self.assertIn("error ABORTED rank 1 tensor allreduce.lonely: ", waits.text())
        self.assertIn(str(dies.pid), waits.text())

    def test_after_ctrl_c_the_next_call_of_the_name_says_how_to_wait(self):
        coordd = self.coordd()
        code = """
import os
import torch
import coordd.torch as hvd
hvd.init()
x = torch.ones(3)
try:
    print("calling")
    hvd.allreduce_(x, op=hvd.Sum, name="called")
except KeyboardInterrupt:
    print("interrupted")
    try:
        hvd.allreduce_(x, op=hvd.Sum, name="called")
    except ValueError as error:
        print("refused:", error)
    hvd.finish_interrupted()
print("reduced:", x.tolist())
print("again:", hvd.allreduce(torch.ones(1), op=hvd.Sum, name="called").tolist())
"""
        waits = self.start(PythonRank(coordd.listen, code, 0, 2))
        late = self.start(PythonRank(coordd.listen, """
import os, time
from coordd import _basics
_basics.init()
print("here")
while not os.path.exists(os.environ["COORDD_TEST_GO"]):
    time.sleep(0.01)
""" + code, 1, 2, COORDD_TEST_GO=os.path.join(self.folder, "go")))
        late.wait_for_text("here")
        waits.wait_for_text("calling")
        self.assertTrue(processes.wait_for(lambda: coordd.metric("coordd_pending_tensors") == 1))
        waits.signal(signal.SIGINT)
        waits.wait_for_text("refused: ")
        with open(os.path.join(self.folder, "go"), "w", encoding="ascii"):
            pass
        for rank in (waits, late):
            self.assertEqual(rank.wait(), 0, rank.text())
            self.assertIn("reduced: [2.0, 2.0, 2.0]\nagain: [2.0]", rank.text())
        self.assertIn("an earlier call was interrupted (Ctrl-C) and still waits for the other ranks: finish_interrupted() waits",
                      waits.text())

    def test_a_call_refused_where_the_others_go_by_schedule_ends_the_generation_with_its_reason(self):
        coordd = self.coordd()
        code = """
import torch
import coordd.torch as hvd
hvd.init()
for _ in range(30):
    hvd.allreduce(torch.ones(3))
try:
    hvd.allreduce(torch.ones(3, device="meta" if hvd.rank() == 0 else "cpu"))
    print("a result")
except ValueError as error:
    print("refused:", error)
except hvd.HorovodInternalError as error:
    print("failed:", error)
try:
    print("then", hvd.allreduce(torch.tensor([hvd.rank() + 2.0]), op=hvd.Sum))
except hvd.HorovodInternalError as error:
    print("later:", error)
"""
        ranks = [self.start(PythonRank(coordd.listen, code, rank, 2)) for rank in range(2)]
        for rank in ranks:
            rank.wait()
        texts = [rank.text() for rank in ranks]
        self.assertIn("refused: ", texts[0])
        self.assertIn("meta", texts[0])
        self.assertRegex(texts[1], "failed: .*(rank 0|refused).*device meta")
        for text in texts:  # no call ever meets another one
            self.assertNotIn("a result", text)
            self.assertRegex(text, r"then tensor\(\[5\.\]\)|later: .*device meta")

    def test_ctrl_c_ends_the_wait_for_ranks_that_do_not_come(self):
        coordd = self.coordd()
        rank = self.start(PythonRank(coordd.listen, """
from coordd import _basics
print("waiting")
try:
    _basics.init()
except KeyboardInterrupt:
    print("interrupted")
""", 0, 2))
        rank.wait_for_text("waiting")
        self.assertTrue(processes.wait_for(lambda: coordd.json("/v1/jobs")["jobs"]))
        rank.signal(signal.SIGINT)
        rank.wait_for_text("interrupted")
        rank.wait()

    def test_a_program_that_nobody_launched_is_a_job_of_one(self):
        code = PREAMBLE + """
from coordd import _basics
for comm in (None, None, [0]):
    _basics.init(comm)
    print(_basics.rank(), "of", _basics.size())
    _basics.shutdown()
"""
        environment = processes.clean_environment(COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"))
        status, said = self.run_command(sys.executable, "-c", code, environment=environment)
        self.assertEqual((status, said), (0, "0 of 1\n" * 3))  # and not a word of coordd's
        status, said = self.run_command(sys.executable, "-c", code,
                                        environment={**environment, "COORDD_LOG_LEVEL": "debug"})
        self.assertEqual((status, said.count("0 of 1")), (0, 3), said)
        self.assertEqual(said.count("coordd listens on"), 1, said)  # one coordd for all of them

    def test_signals_stay_those_of_the_program(self):
        code = PREAMBLE + """
import faulthandler, os, signal
def caught():
    mask = next(line for line in open("/proc/self/status") if line.startswith("SigCgt")).split()[1]
    return int(mask, 16) & 0x7fffffff  # not those that libc's threads use
faulthandler.enable()
before = caught()
from coordd import _basics
_basics.init()
assert caught() == before, (before, caught())
print("in a job, with faulthandler's handlers", flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""
        environment = processes.clean_environment(COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"), COORDD_LOG_LEVEL="error")
        status, said = self.run_command(sys.executable, "-c", code, environment=environment)
        self.assertEqual(status, -signal.SIGSEGV, said)
        self.assertRegex(said, "^in a job.*\nFatal Python error: Segmentation fault")
        self.assertNotIn("Caught signal", said)  # UCX's words
        plain = code.replace("faulthandler.enable()", "").replace("SIGSEGV", "SIGHUP")
        self.assertEqual(self.run_command(sys.executable, "-c", plain, environment=environment)[0], -signal.SIGHUP)

    def test_some_ranks_of_another_launcher_make_a_job(self):
        coordd = self.coordd()
        code = PREAMBLE + """
import os
from coordd import _basics
own = int(os.environ["OMPI_COMM_WORLD_RANK"])
mine, other = ([2, 0], [1]) if own != 1 else ([1], [2, 0])
try:
    _basics.init(comm=other)
except ValueError as error:
    assert f"this process has rank {own}" in str(error), error
_basics.init(comm=mine)
print(own, "is", _basics.rank(), "of", _basics.size())
_basics.shutdown()
_basics.init(comm=[0, 1, 2])
assert (_basics.rank(), _basics.size()) == (own, 3)
_basics.shutdown()
_basics.init(launcher="none", job=f"alone-{own}", comm=[0])
assert _basics.size() == 1
_basics.shutdown()
try:
    _basics.init(launcher="slurm")
except ValueError as error:
    assert "slurm" in str(error).lower(), error
try:
    _basics.init(port_range="9-5")
except ValueError as error:
    print("refused", error)
"""
        ranks = [self.start(processes.Process([sys.executable, "-u", "-c", code], processes.clean_environment(
            COORDD_ADDR=coordd.listen, COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"), OMPI_COMM_WORLD_RANK=own,
            OMPI_COMM_WORLD_SIZE=3, OMPI_COMM_WORLD_LOCAL_RANK=own, OMPI_COMM_WORLD_LOCAL_SIZE=3)))
                 for own in range(3)]
        for own, (rank, expected) in enumerate(zip(ranks, ["1 of 2", "0 of 1", "0 of 2"])):
            self.assertEqual(rank.wait(), 0, rank.text())
            self.assertIn(f"{own} is {expected}", rank.text())
            self.assertRegex(rank.text(), "refused .*9-5")

    def test_more_than_one_that_nobody_launched_are_told_what_to_do(self):
        status, said = self.run_command(
            sys.executable, "-c", PREAMBLE + "from coordd import _basics; _basics.init()",
            environment=processes.clean_environment(COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"), COORDD_SIZE=2))
        self.assertNotEqual(status, 0)
        self.assertRegex(said.splitlines()[-1], r"a job of 2 workers .* needs a coordinator.*coordrun")

    def test_grpc_and_protobuf_of_others_work_in_the_same_process_whoever_comes_first(self):
        if not importlib.util.find_spec("grpc"):
            self.skipTest("no grpcio here: tools/install-deps --test")
        code = PREAMBLE + """
import os
def others():
    import grpc
    from google.protobuf import struct_pb2
    if os.environ.get("WITH_TENSORFLOW"):
        import tensorflow
    return grpc, struct_pb2
def ours():
    import torch
    import coordd.torch
    return torch, coordd.torch
if os.environ["COORDD_RANK"] == "0":
    (grpc, struct_pb2), (torch, hvd) = others(), ours()
else:
    (torch, hvd), (grpc, struct_pb2) = ours(), others()
from concurrent import futures
class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
def call_ourselves():
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert channel.unary_unary("/echo/Echo")(b"hello", timeout=30) == b"hello"
    server.stop(0).wait()
def collective():
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
if hvd.is_initialized() or os.environ["COORDD_RANK"] == "0":
    call_ourselves()
hvd.init()
collective()
call_ourselves()
value = struct_pb2.Struct()
value["a"] = 1.5
assert struct_pb2.Struct.FromString(value.SerializeToString())["a"] == 1.5
collective()
hvd.shutdown()
call_ourselves()
print("both work")
"""
        environment = processes.clean_environment(
            COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"),
            WITH_TENSORFLOW="1" if importlib.util.find_spec("tensorflow") else None)
        status, said = self.run_command(processes.program("coordrun"), "-np", "2", "--", sys.executable, "-c", code,
                                        environment=environment)
        self.assertEqual((status, said.count("both work")), (0, 2), said)




# What a library of TensorFlow's kind offers to the whole process: names that libcoordd.so's libraries have too.
OFFERS_PROTOBUF_AND_GRPC = """
#include <stdlib.h>
void _ZN6google8protobuf14DescriptorPool14generated_poolEv(void) { abort(); }
void _ZN6google8protobuf8internal16InitProtobufDefaultsSlowEv(void) { abort(); }
void _ZN6google8protobuf8internal14AddDescriptorsEPKNS1_15DescriptorTableE(void) { abort(); }
void _ZN6google8protobuf11MessageLite15ParseFromStringERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE(void) { abort(); }
void grpc_init(void) { abort(); }
void grpc_channel_create(void) { abort(); }
"""

# An allocator that knows its own memory: what it has not given out, it does not take back.
REPLACES_MALLOC = """
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void*);
struct front { void* block; size_t size; uint64_t mark; uint64_t unused; };
static void* give(size_t alignment, size_t size) {
  if (alignment < sizeof(struct front)) alignment = sizeof(struct front);
  char* block = __libc_memalign(alignment, size + alignment);
  if (block == NULL) return NULL;
  struct front* front = (struct front*)(block + alignment) - 1;
  front->block = block;
  front->size = size;
  front->mark = 0x636f6f726464;
  return front + 1;
}
void free(void* given) {
  if (given == NULL) return;
  struct front* front = (struct front*)given - 1;
  if (front->mark != 0x636f6f726464) abort();
  front->mark = 0;
  __libc_free(front->block);
}
void* malloc(size_t size) { return give(16, size); }
void* calloc(size_t count, size_t size) {
  void* given = give(16, count * size);
  return given == NULL ? NULL : memset(given, 0, count * size);
}
void* realloc(void* old, size_t size) {
  void* given = give(16, size);
  if (old == NULL || given == NULL) return given;
  size_t had = ((struct front*)old - 1)->size;
  memcpy(given, old, had < size ? had : size);
  free(old);
  return given;
}
void* memalign(size_t alignment, size_t size) { return give(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return give(alignment, size); }
int posix_memalign(void** given, size_t alignment, size_t size) {
  *given = give(alignment, size);
  return *given == NULL ? ENOMEM : 0;
}
size_t malloc_usable_size(void* given) { return given == NULL ? 0 : ((struct front*)given - 1)->size; }
"""


@unittest.skipUnless(shutil.which("cc"), "no C compiler here")
class OtherLibraries(processes.TestCase):
    """Libraries that offer what libcoordd.so's own libraries offer, as TensorFlow and jemalloc do."""

    def library(self, name, source):
        path = os.path.join(self.folder, name)
        with open(path + ".c", "w", encoding="utf-8") as file:
            file.write(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-O1", "-fno-builtin", "-o", path, path + ".c"], check=True)
        return path

    def joins(self, code, **variables):
        """Runs `code` in two ranks, before and after which they are members: (exit status, what they said)."""
        environment = processes.clean_environment(COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"))
        settings = [f"{name}={value}" for name, value in variables.items()]
        return self.run_command(processes.program("coordrun"), "-np", "2", "--", "env", *settings, sys.executable, "-c",
                                PREAMBLE + code, environment=environment)

    def test_a_process_that_offers_another_protobuf(self):
        other = self.library("offers.so", OFFERS_PROTOBUF_AND_GRPC)
        status, said = self.joins(f"""
import ctypes
ctypes.CDLL({other!r}, mode=ctypes.RTLD_GLOBAL)
from coordd import _basics
_basics.init()
_basics.shutdown()
print("well")
""")
        self.assertEqual((status, said.count("well")), (0, 2), said)

    def test_a_process_whose_malloc_is_replaced(self):
        other = self.library("malloc.so", REPLACES_MALLOC)
        status, said = self.joins("""
from coordd import _basics
_basics.init()
_basics.shutdown()
print("well")
""", LD_PRELOAD=other)
        self.assertEqual((status, said.count("well")), (0, 2), said)

    def test_both_at_once_are_refused_with_a_sentence_or_work_in_the_other_order(self):
        offers = self.library("offers.so", OFFERS_PROTOBUF_AND_GRPC)
        replaces = self.library("malloc.so", REPLACES_MALLOC)
        status, said = self.joins(f"""
import ctypes
other = lambda: ctypes.CDLL({offers!r}, mode=ctypes.RTLD_GLOBAL)
import os
import coordd
from coordd import _basics
if os.environ["COORDD_RANK"] == "0":
    other()
    try:
        coordd.check_build()
    except ImportError as error:
        print("refused", error)
else:
    coordd.check_build()
    other()
    _basics.init(comm=[1])
    _basics.shutdown()
    print("well")
""", LD_PRELOAD=replaces)
        self.assertEqual((status, said.count("well")), (0, 1), said)
        self.assertRegex(said, r"refused malloc is replaced .* call coordd.check_build\(\) before")


if __name__ == "__main__":
    if not importlib.util.find_spec("torch"):
        print(f"SKIPPED: no torch for {sys.executable}; tools/install-deps --test installs it", file=sys.stderr)
        sys.exit(processes.SKIPPED)
    processes.main()
