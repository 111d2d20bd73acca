"""A trace as an OTF2 archive: with a library that only remembers, and, where OTF2's own is, read back from the files."""

import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "client", "python"))

from coordd import otf2 as export  # noqa: E402
from coordd.exceptions import InvalidArgumentError  # noqa: E402

HAS_OTF2 = importlib.util.find_spec("otf2") is not None


def named(what, process, track, name):
    return {"ph": "M", "pid": process, "tid": track, "name": f"{what}_name", "args": {"name": name}}


def piece(process, track, begin, length, name):
    return {"ph": "X", "pid": process, "tid": track, "ts": begin, "dur": length, "name": name}


# Two ranks; a batch with its phases, and a second one of the same track behind it.
EVENTS = [named("process", 0, 0, "rank 0 (node1, pid 7)"), named("thread", 0, 1, "lane 1"),
          piece(0, 1, 0.0, 10.5, "layer1.weight"), piece(0, 1, 0.0, 4.001, "QUEUE"), piece(0, 1, 4.001, 6.499, "HOST_ALLREDUCE"),
          {"ph": "i", "pid": 0, "tid": 1, "ts": 0.0, "s": "p", "name": "CYCLE_START"},
          piece(0, 1, 10.5, 1.0, "layer2.weight"), piece(1, 1, 2.0, 3.0, "layer1.weight")]
NESTED = [("enter", 0, "layer1.weight"), ("enter", 0, "QUEUE"), ("leave", 4001, "QUEUE"), ("enter", 4001, "HOST_ALLREDUCE"),
          ("leave", 10500, "HOST_ALLREDUCE"), ("leave", 10500, "layer1.weight"), ("enter", 10500, "layer2.weight"),
          ("leave", 11500, "layer2.weight")]
OF_RANKS = {("rank 0 (node1, pid 7)", "lane 1"): NESTED,
            ("rank 1", "track 1"): [("enter", 2000, "layer1.weight"), ("leave", 5000, "layer1.weight")]}


class Archive:
    """otf2's writer, as far as it is used: keeps what it is told."""

    def __init__(self):
        self.said = {}
        self.definitions = types.SimpleNamespace(system_tree_node=lambda name: name, region=lambda name: name,
                                                 location_group=lambda name, system_tree_parent: name)

    def event_writer(self, name, group):
        events = self.said.setdefault((group, name), [])
        return types.SimpleNamespace(enter=lambda when, what: events.append(("enter", when, what)),
                                     leave=lambda when, what: events.append(("leave", when, what)))


class Export(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.trace, self.folder = os.path.join(held.name, "train.trace.json"), os.path.join(held.name, "archive")
        self.write(json.dumps({"displayTimeUnit": "ms", "traceEvents": EVENTS}))

    def write(self, text):
        with open(self.trace, "w", encoding="utf-8") as file:
            file.write(text)

    def remembered(self):
        archive = Archive()
        library = types.SimpleNamespace(writer=types.SimpleNamespace(
            open=lambda folder, timer_resolution: contextlib.nullcontext(archive) if timer_resolution == 10**9 else None))
        with unittest.mock.patch.dict(sys.modules, {"otf2": library}):
            self.entered = export.convert(self.trace, self.folder)
        return archive.said

    def test_ranks_are_groups_and_phases_lie_in_their_batches(self):
        self.assertEqual(self.remembered(), OF_RANKS)
        self.assertEqual(self.entered, 5)

    def test_a_slice_that_overlaps_its_neighbour_ends_with_it(self):
        self.write(json.dumps([piece(0, 1, 0, 5, "a"), piece(0, 1, 3, 9, "b")]))
        self.assertEqual(self.remembered()["rank 0", "track 1"],
                         [("enter", 0, "a"), ("enter", 3000, "b"), ("leave", 5000, "b"), ("leave", 5000, "a")])

    def test_tracks_of_one_name_stay_apart(self):
        self.write(json.dumps([named("thread", 0, 1, "lane"), named("thread", 0, 2, "lane"), piece(0, 1, 0, 1, "a"),
                               piece(0, 2, 0, 1, "b")]))
        self.assertEqual(set(self.remembered()), {("rank 0", "lane"), ("rank 0", "lane (2)")})

    def test_what_is_no_timeline_is_said(self):
        for text, says in (("[{", "not written to its end"), ("{}", "no traceEvents"), ("[1]", "no traceEvents")):
            self.write(text)
            with self.assertRaisesRegex(InvalidArgumentError, says):
                export.convert(self.trace, self.folder)

    def test_a_folder_that_is_there_is_left_alone(self):
        os.mkdir(self.folder)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            self.assertEqual(export.main([self.trace, self.folder]), 1)
        self.assertRegex(said.getvalue(), "^coordd.otf2: .* is there already: expected a new folder\n$")
        self.assertEqual(os.listdir(self.folder), [])

    def test_without_the_library_it_says_where_it_is(self):
        with unittest.mock.patch.dict(sys.modules, {"otf2": None}), self.assertRaisesRegex(ImportError, "pip install otf2"):
            export.convert(self.trace, self.folder)

    @unittest.skipUnless(HAS_OTF2, "no otf2 here")
    def test_otf2_reads_what_was_written(self):
        import otf2
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(export.main([self.trace, self.folder]), 0)
        self.assertIn("5 slices in ", said.getvalue())
        found = {}
        with otf2.reader.open(os.path.join(self.folder, "traces.otf2")) as archive:
            self.assertEqual(archive.timer_resolution, 10**9)
            for location, event in archive.events:
                found.setdefault((location.group.name, location.name), []).append(
                    (type(event).__name__.lower(), event.time, event.region.name))
        self.assertEqual(found, OF_RANKS)


if __name__ == "__main__":
    unittest.main()
