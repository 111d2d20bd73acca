"""What needs processes of its own: Ctrl-C, a rank that is killed, a program without a coordinator, and other users of gRPC
and Protobuf in the same process."""

import importlib.util
import os
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

import processes  # noqa: E402

PREAMBLE = f"import sys; sys.path.insert(0, {os.path.join(ROOT, 'client', 'python')!r})\n"


class PythonRank(processes.Process):
    """A rank of a job that was started by nobody."""

    def __init__(self, coordinator, code, rank=0, size=1):
        super().__init__([sys.executable, "-u", "-c", PREAMBLE + code], processes.clean_environment(
            COORDD_ADDR=coordinator, COORDD_RANK=rank, COORDD_SIZE=size, PYTHONDONTWRITEBYTECODE=1,
            COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY")))

    def wait_for_text(self, text):
        if not processes.wait_for(lambda: text in self.text() or not self.running()) or text not in self.text():
            raise AssertionError(f"has not said {text!r}:\n{self.text()}")


class Processes(processes.TestCase):

    def test_ctrl_c_and_the_death_of_another_rank_end_a_wait(self):
        coordd = self.coordd()
        waits = self.start(PythonRank(coordd.listen, """
import torch
import coordd.torch as hvd
hvd.init()
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
        waits.wait_for_text("waiting")
        waits.signal(signal.SIGINT)
        waits.wait_for_text("interrupted, complete: False")
        dies.signal(signal.SIGKILL)
        self.assertEqual(waits.wait(), 0, waits.text())
        self.assertIn("error ABORTED rank 1 tensor allreduce.lonely: ", waits.text())
        self.assertIn(str(dies.pid), waits.text())

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

    def test_without_a_coordinator_the_variable_is_named(self):
        status, said = self.run_command(
            sys.executable, "-c", PREAMBLE + "from coordd import _basics; _basics.init()",
            environment=processes.clean_environment(COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY")))
        self.assertNotEqual(status, 0)
        self.assertIn("COORDD_ADDR", said.splitlines()[-1])

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


if __name__ == "__main__":
    if not importlib.util.find_spec("torch"):
        print(f"SKIPPED: no torch for {sys.executable}; tools/install-deps --test installs it", file=sys.stderr)
        sys.exit(processes.SKIPPED)
    processes.main()
