"""The status page in headless Chromium: what an operator sees of four jobs, and of a coordd that has gone.

The jobs come from status_page_jobs, a real coordd with workers that say what the page must show.
"""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

BUILD = os.environ.get("COORDD_BUILD_DIR", "build")
PATIENCE_S = 60  # against hangs only


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


def browse(url, *, virtual_ms=4000):
    """The document after `virtual_ms` of the browser's time, and what its console said."""
    with tempfile.TemporaryDirectory(prefix="coordd-chromium-", ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--enable-logging=stderr", f"--user-data-dir={profile}", f"--virtual-time-budget={virtual_ms}",
             "--dump-dom", url],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=True, text=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    # What the reader sees: without the page's own program and style.
    return re.sub("<(script|style)>.*?</\\1>", "", done.stdout, flags=re.S), console


def tiles(document, job):
    """{rank: state} of a job's tiles."""
    section = re.search(f'<section class="job" data-job="{job}">(.*?)(?=<section class="job"|$)', document, re.S)
    found = re.findall(r'<div class="rank (\w+)"[^>]*data-rank="(-?\d+)"', section.group(1))
    return {int(rank): state for state, rank in found}


def verdict(document, job):
    section = re.search(f'data-job="{job}">.*?<p class="verdict[^>]*>(.*?)</p>', document, re.S)
    return re.sub("<[^>]*>", "", section.group(1))


class StatusPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.jobs = subprocess.Popen([os.path.join(BUILD, "tests", "status_page_jobs")], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)
        cls.url = f"http://127.0.0.1:{int(cls.jobs.stdout.readline())}/"
        cls.document, cls.console = browse(cls.url)

    @classmethod
    def tearDownClass(cls):
        cls.jobs.stdin.close()
        cls.jobs.stdout.close()
        cls.jobs.wait(PATIENCE_S)

    def test_shows_every_rank_of_every_job(self):
        self.assertEqual(sorted(tiles(self.document, "resnet50")), list(range(16)))
        self.assertEqual(sorted(tiles(self.document, "llama-7b")), list(range(8)))
        self.assertEqual(sorted(tiles(self.document, "digits")), [0, 2])
        self.assertEqual(sorted(tiles(self.document, "queue")), [-1])

    def test_points_at_the_slowest_rank(self):
        states = tiles(self.document, "resnet50")
        self.assertEqual([rank for rank, state in states.items() if state == "slowest"], [9])
        self.assertIn("Slowest: rank 9 on node3", verdict(self.document, "resnet50"))
        self.assertIn("executing", states.values())

    def test_names_who_is_missing_in_a_stall(self):
        states = tiles(self.document, "llama-7b")
        self.assertEqual([rank for rank, state in states.items() if state == "missing"], [2, 6])
        self.assertEqual(set(states.values()), {"missing", "waiting"})
        self.assertIn("Everyone waits for ranks 2, 6 to submit transformer.h.11.mlp.weight",
                      verdict(self.document, "llama-7b"))

    def test_says_who_was_lost_and_why(self):
        self.assertIn("Rank 1 on node1 (pid 4101) was lost: its connection closed without a goodbye.",
                      verdict(self.document, "digits"))

    def test_says_whom_a_gathering_job_waits_for(self):
        self.assertIn("1 of 4 workers so far", verdict(self.document, "queue"))

    def test_lists_what_has_happened(self):
        section = re.search('<section class="job events">(.*?)</section>', self.document, re.S).group(1)
        rows = [re.sub("<[^>]*>", " ", row) for row in re.findall("<tr>(.*?)</tr>", section, re.S)]
        self.assertEqual(len(rows), 12, "the newest")
        self.assertTrue(any("digits" in row and "rank 1 (host node1, pid 4101) was lost" in row for row in rows), rows)

    def test_has_no_error(self):
        self.assertEqual(self.console, [])
        self.assertNotIn("does not answer", self.document)
        self.assertNotIn('class="lost"', self.document)

    def test_names_coordds_version_and_address(self):
        self.assertRegex(self.document, r'id="about">\d+\.\d+\.\d+ at 127\.0\.0\.1:\d+, up ')

    def test_keeps_what_it_saw_when_coordd_goes_away(self):
        page = urllib.request.urlopen(self.url, timeout=PATIENCE_S).read()
        state = urllib.request.urlopen(self.url + "v1/jobs", timeout=PATIENCE_S).read()
        document, console = browse(serve_once(self, page, state), virtual_ms=6000)
        self.assertIn('class="lost"', document)
        self.assertIn("coordd does not answer", document)
        self.assertEqual(len(tiles(document, "resnet50")), 16)
        self.assertFalse([line for line in console if "Uncaught" in line])

    def test_shows_no_markup_that_a_worker_sends(self):
        page = urllib.request.urlopen(self.url, timeout=PATIENCE_S).read()
        state = json.loads(urllib.request.urlopen(self.url + "v1/jobs", timeout=PATIENCE_S).read())
        evil = "<img src=x onerror=\"document.title='taken'\">"
        for job in state["jobs"]:
            for worker in job["workers"]:
                worker["hostname"] = worker["activity"] = worker["node_id"] = evil
            for stalled in job["stalled"]:
                stalled["name"] = evil
        happened = {"events": [{"unix_seconds": 0, "job": evil, "generation": 1, "warning": True, "text": "lost: " + evil}]}
        url = serve_once(self, page, json.dumps(state).encode(), json.dumps(happened).encode())
        document, _ = browse(url, virtual_ms=500)
        self.assertNotIn("<img", document)
        self.assertIn("&lt;img", document)
        self.assertIn("lost: &lt;img", document)

    def test_shows_the_gpu_of_a_rank_and_how_tensors_travel(self):
        page = urllib.request.urlopen(self.url, timeout=PATIENCE_S).read()
        state = json.loads(urllib.request.urlopen(self.url + "v1/jobs", timeout=PATIENCE_S).read())
        self.assertEqual({worker["device_use"] for job in state["jobs"] for worker in job["workers"]}, {None})
        self.assertNotIn("tensors on GPUs", self.document)
        path = {"process_set": 0, "nccl": True, "why_not": "", "refused": False, "within_node": "NVLink", "between_nodes": "RDMA, GPUDirect"}
        staged = dict(path, nccl=False, process_set=2, why_not="rank 1 has no NCCL <b>")
        for job in state["jobs"]:
            for worker in job["workers"]:
                if worker["rank"] == 0:
                    worker["device_use"] = {"device": {"index": 3, "model": "NVIDIA H200", "uuid": "GPU-8f3c"}, "nccl": "2.28.9",
                                            "no_nccl": "", "paths": [path, staged], "more_paths": 0}
                    worker["gpu_health"] = {"uuid": "GPU-8f3c", "utilization_percent": 97, "memory_used_bytes": 40 << 30,
                                            "memory_total_bytes": 80 << 30, "power_watts": 512.4, "temperature_celsius": None,
                                            "throttle_reasons": ["power cap"], "ecc_corrected": 3, "ecc_uncorrected": 0,
                                            "last_xid": 79, "last_xid_seconds": 12.0, "trouble": ""}
        document, console = browse(serve_once(self, page, json.dumps(state).encode()), virtual_ms=500)
        self.assertFalse([line for line in console if "Uncaught" in line])
        self.assertIn("GPU 3, NVIDIA H200, GPU-8f3c", document)
        self.assertIn("tensors by NCCL; in a node: NVLink; between nodes: RDMA, GPUDirect", document)
        self.assertIn("tensors of process set 2 through pinned host memory: rank 1 has no NCCL", document)
        self.assertIn("NCCL, and host memory", document)
        self.assertRegex(document, "GPU-8f3c: 97 %, [^\n]* of [^\n]*, 512 W\nslowed down: power cap\n"
                                   "memory errors: 3 corrected, 0 uncorrected\nXID 79, 12[^\n]* ago")
        self.assertIn("tensors on GPUs by", document)

    def test_shows_over_what_ranks_reach_each_other(self):
        page = urllib.request.urlopen(self.url, timeout=PATIENCE_S).read()
        state = json.loads(urllib.request.urlopen(self.url + "v1/jobs", timeout=PATIENCE_S).read())
        self.assertEqual({worker["host_edges"] for job in state["jobs"] for worker in job["workers"]}, {None})
        self.assertNotIn("edges", self.document)
        for job in state["jobs"]:
            for worker in job["workers"]:
                rdma = [{"over": "ucx rdma <b>", "ranks": 20, "first_ranks": list(range(16))}] if worker["rank"] == 0 else []
                worker["host_edges"] = {"within_node": "mapped",
                                        "between_nodes": [{"over": "tcp encrypted", "ranks": 1, "first_ranks": [7]}, *rdma]}
        document, console = browse(serve_once(self, page, json.dumps(state).encode()), virtual_ms=500)
        self.assertFalse([line for line in console if "Uncaught" in line])
        self.assertRegex(document, "<b>mapped</b><span[^>]*>edges in nodes<")
        self.assertRegex(document, "<b>mixed: tcp encrypted, ucx rdma &lt;b&gt;</b><span[^>]*>edges between nodes<")
        self.assertRegex(document, "in its node by mapped\nbetween nodes by tcp encrypted to rank 7; ucx rdma (<b>|&lt;b&gt;) to "
                                   "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more")

    def test_shows_on_which_device_a_batch_stands(self):
        page = urllib.request.urlopen(self.url, timeout=PATIENCE_S).read()
        state = json.loads(urllib.request.urlopen(self.url + "v1/jobs", timeout=PATIENCE_S).read())
        sentence = "started on ranks 0, 1, enqueued on rank 3 (GPU-8f3c, host <b>)"
        shown = [job["name"] for job in state["jobs"] if job["stalled"]]
        for job in state["jobs"]:
            for stalled in job["stalled"]:
                stalled.update(name="allreduce grad/3 (+41) on the device", on_devices=sentence)
        document, console = browse(serve_once(self, page, json.dumps(state).encode()), virtual_ms=500)
        told = "started on ranks 0, 1, enqueued on rank 3 (GPU-8f3c, host &lt;b&gt;)"
        self.assertIn(f"allreduce grad/3 (+41) on the device: {told}.", verdict(document, shown[0]))
        self.assertIn(f'<td class="red" colspan="2">{told}</td>', document)
        self.assertEqual(console, [])

    def test_shows_process_sets_and_who_has_joined(self):
        page = urllib.request.urlopen(self.url, timeout=PATIENCE_S).read()
        state = json.loads(urllib.request.urlopen(self.url + "v1/jobs", timeout=PATIENCE_S).read())
        self.assertEqual({(job["process_sets"], job["joined_count"]) for job in state["jobs"]}, {(0, 0)})
        self.assertNotIn("process set", self.document)
        for job in state["jobs"]:
            job.update(process_sets=3, joined_ranks=[5], joined_count=1)
            for stalled in job["stalled"]:
                stalled["process_set"] = 2
            for worker in job["workers"]:
                if worker["rank"] == 5:
                    worker["activity"] = "joined: has no more data"
        document, console = browse(serve_once(self, page, json.dumps(state).encode()), virtual_ms=500)
        self.assertIn("transformer.h.11.mlp.weight (process set 2)", document)
        self.assertIn("joined, no more data", document)
        self.assertIn("rank 5: no data", document)
        self.assertEqual(console, [])

    def test_invites_when_there_is_no_job(self):
        page = urllib.request.urlopen(self.url, timeout=PATIENCE_S).read()
        state = json.loads(urllib.request.urlopen(self.url + "v1/jobs", timeout=PATIENCE_S).read())
        state["jobs"] = []
        document, console = browse(serve_once(self, page, json.dumps(state).encode()), virtual_ms=500)
        self.assertIn("No job yet", document)
        self.assertIn("coordrun -np 4", document)
        self.assertEqual(console, [])


def serve_once(test, page, state, events=None):
    """URL of a server that gives the page and one answer of /v1/jobs and /v1/events, then only breaks connections."""
    answers = {"/v1/jobs": state, "/v1/events": events}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = page if self.path == "/" else answers.pop(self.path.split("?")[0], None)
            if body is None:
                self.connection.close()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8" if self.path == "/" else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

        def finish(self):
            try:
                super().finish()
            except (OSError, ValueError):
                pass  # we closed it ourselves

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    test.addCleanup(thread.join)
    test.addCleanup(server.server_close)
    test.addCleanup(server.shutdown)
    return f"http://127.0.0.1:{server.server_address[1]}/"


if __name__ == "__main__":
    if find_chromium() is None:
        # Where it is a package it has to be there (tools/install-deps --test): a skipped test would hide that.
        with open("/etc/os-release", encoding="utf-8") as file:
            ubuntu = "ID=ubuntu\n" in file
        print("SKIPPED: Ubuntu's chromium is a snap, which does not run headless in containers" if ubuntu else
              "no chromium found: the status page cannot be tested (Debian: apt-get install chromium)", file=sys.stderr)
        sys.exit(77 if ubuntu else 1)
    unittest.main()
