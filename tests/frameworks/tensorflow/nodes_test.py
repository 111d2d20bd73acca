"""coordd.tensorflow and coordd.keras on two nodes: network namespaces of one machine, two ranks on each, over TCP."""

import importlib.util
import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, ROOT)

from tests.support import network, processes  # noqa: E402
from tests.support.processes import Process, program  # noqa: E402

if importlib.util.find_spec("tensorflow") is None:
    print(f"SKIPPED: {sys.executable} has no tensorflow; tools/test-frameworks --tensorflow makes an environment that has it",
          file=sys.stderr)
    sys.exit(processes.SKIPPED)

HERE = os.path.dirname(os.path.abspath(__file__))
COORDD, FIRST, SECOND = 0, 1, 2
PATIENCE_S = max(600.0, float(os.environ.get("COORDD_TEST_PATIENCE_S", "0")))

# Where rank 0's coordinator of jax.distributed listens, as the other node reaches it. Nothing is exchanged by JAX itself: its Gloo looks
# for the host's name, which all namespaces of a machine share.
JAX_DISTRIBUTED = """
import jax
import coordd.jax as hvd

hvd.initialize(local_device_ids=[0])
client = jax._src.distributed.global_state.client
client.key_value_set(f"rank {hvd.rank()}", "here")
assert client.blocking_key_value_get(f"rank {hvd.size() - 1 - hvd.rank()}", 60000) == "here"
print("met at", jax._src.distributed.global_state.coordinator_address, "on", hvd.cross_size(), "nodes", flush=True)
hvd.allreduce(jax.numpy.ones(1), name="end")
jax.distributed.shutdown()
hvd.shutdown()
"""


@unittest.skipIf(network.why_not(), network.why_not())
class NodesTest(processes.TestCase):

    def setUp(self):
        super().setUp()
        self.network = network.Network(3)
        self.addCleanup(self.network.close)
        certs, address = os.path.join(self.folder, "certs"), self.network.addresses[COORDD]
        status, text = self.run_command(program("coordctl"), "certs", certs, "--name", address)
        self.assertEqual(status, 0, text)
        self.daemon = self.coordd("--tls-cert", f"{certs}/server.crt", "--tls-key", f"{certs}/server.key", "--tls-ca",
                                  f"{certs}/ca.crt", listen=f"{address}:0", wrapper=self.network.on(COORDD))
        token = os.path.join(self.folder, "token")
        with open(token, "w", encoding="ascii") as out:
            out.write("f00d")
        os.chmod(token, 0o600)
        self.environment = processes.clean_environment(
            COORDD_TOKEN_FILE=token, COORDD_TLS_CA=f"{certs}/ca.crt", COORDD_TLS_CERT=f"{certs}/worker.crt",
            COORDD_TLS_KEY=f"{certs}/worker.key", COORDD_TIMEOUT="60", TF_CPP_MIN_LOG_LEVEL="3",
            COORDD_LIBRARY=os.environ.get("COORDD_LIBRARY"), PYTHONPATH=os.path.join(ROOT, "client", "python"))

    def run_on_both(self, each, *arguments, **variables):
        """What was printed on both nodes by `each` ranks of a program on each of them."""
        nodes = [self.start(Process([*self.network.on(host), program("coordrun"), "-np", str(each), "--size", str(2 * each),
                                     "--first-rank", str(first), "--job", "nodes", "--coordinator", self.daemon.listen, "--",
                                     sys.executable, *arguments], {**self.environment, **variables}))
                 for host, first in ((FIRST, 0), (SECOND, each))]
        for node in nodes:
            self.assertEqual(node.wait(PATIENCE_S), 0, node.text())
        return "".join(node.text() for node in nodes)

    def test_operations_and_graphs(self):
        said = self.run_on_both(2, os.path.join(HERE, "ranks.py"), "--sizes", "4", "check_operations", "check_graphs")
        self.assertRegex(said, r"\d+ checks on 4 ranks")

    def test_fit_is_that_of_one_process(self):
        said = self.run_on_both(1, os.path.join(HERE, "fit.py"), "auto", KERAS_BACKEND="tensorflow")
        self.assertEqual(said.count("the same as one process"), 2, said)

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "no jax here")
    def test_jax(self):
        said = self.run_on_both(1, os.path.join(HERE, "jax_ranks.py"))
        self.assertRegex(said, r"checks of coordd.jax on 2 ranks")
        path = os.path.join(self.folder, "distributed.py")
        with open(path, "w", encoding="utf-8") as text:
            text.write(JAX_DISTRIBUTED)
        said = self.run_on_both(1, path)
        self.assertEqual(said.count(f"met at {self.network.addresses[FIRST]}:"), 2, said)


if __name__ == "__main__":
    processes.main()
