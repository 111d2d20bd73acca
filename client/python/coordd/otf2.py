"""A trace of `coordctl trace` as an OTF2 archive, which Vampir, Scalasca's tools and otf2-print read.

    coordctl trace train                                    # writes train.trace.json
    python -m coordd.otf2 train.trace.json train-otf2       # writes train-otf2/traces.otf2 and what belongs to it

Needs the library of OTF2's authors: ``pip install otf2``, or Debian's python3-otf2. Nothing else of coordd is loaded.
"""

import argparse
import json
import os
import sys
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from coordd.exceptions import InvalidArgumentError

__all__ = ["convert"]

_TICKS_PER_SECOND = 1_000_000_000
_Slice = Tuple[int, int, str]  # begin and end in ticks, name


def _events_of(path: str) -> List[Dict[str, Any]]:
    """InvalidArgumentError: the file is no whole timeline. OSError."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is no timeline, or not written to its end: {error}", "INVALID_ARGUMENT") from None
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise InvalidArgumentError(f"{path} has no traceEvents: expected a file of coordctl trace", "INVALID_ARGUMENT")
    return events


def _nested(slices: List[_Slice]) -> Iterator[Tuple[bool, int, str]]:
    """(whether it is entered, when, name) in the order of time, each left before what it lies in. A slice that ends behind the one
    that it lies in, as where more than 64 batches of a lane overlap, ends with that."""
    inside: List[Tuple[int, str]] = []
    for begin, end, name in sorted(slices, key=lambda one: (one[0], -one[1])):
        while inside and inside[-1][0] <= begin:
            yield (False, *inside.pop())
        end = min(end, inside[-1][0]) if inside else end
        if end > begin:
            yield True, begin, name
            inside.append((end, name))
    while inside:
        yield (False, *inside.pop())


class _Timeline:
    """Processes, tracks and slices of a file."""

    def __init__(self, events: List[Dict[str, Any]]):
        self.processes: Dict[int, str] = {}
        self.tracks: Dict[Tuple[int, int], str] = {}
        self.slices: Dict[Tuple[int, int], List[_Slice]] = {}
        for event in events:
            kind, process, track = event.get("ph"), event.get("pid", 0), event.get("tid", 0)
            if kind == "M" and event.get("name") == "process_name":
                self.processes[process] = event["args"]["name"]
            elif kind == "M" and event.get("name") == "thread_name":
                self.tracks[process, track] = event["args"]["name"]
            elif kind == "X":
                # Microseconds with nanoseconds behind the point.
                begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
                self.slices.setdefault((process, track), []).append((begin, begin + length, event["name"]))


def convert(trace: str, folder: str) -> int:
    """Writes the timeline `trace` (a path) as an archive into `folder`, which must not be there yet: a location group for each rank, a
    location for each lane, a region for each phase and tensor, in nanoseconds from the begin of the trace. Returns the number of
    slices. InvalidArgumentError: not such a file, or the folder is there. ImportError: no otf2. OSError."""
    timeline = _Timeline(_events_of(trace))
    if os.path.exists(folder):
        raise InvalidArgumentError(f"{folder} is there already: expected a new folder", "INVALID_ARGUMENT")
    try:
        import otf2  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError("there is no otf2 here: pip install otf2, or Debian's python3-otf2") from error
    entered = 0
    with otf2.writer.open(folder, timer_resolution=_TICKS_PER_SECOND) as archive:
        job = archive.definitions.system_tree_node("job")
        taken: Set[Tuple[int, str]] = set()
        for (process, track), slices in sorted(timeline.slices.items()):
            rank = archive.definitions.location_group(timeline.processes.get(process, f"rank {process}"), system_tree_parent=job)
            name = timeline.tracks.get((process, track), f"track {track}")
            if (process, name) in taken:  # OTF2 would take two of one name for one
                name = f"{name} ({track})"
            taken.add((process, name))
            location = archive.event_writer(name, group=rank)
            for is_entered, when, what in _nested(slices):
                region = archive.definitions.region(what)
                (location.enter if is_entered else location.leave)(when, region)
                entered += is_entered
    return entered


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m coordd.otf2", description="A trace of coordctl trace as an OTF2 archive.")
    parser.add_argument("trace", help="JOB.trace.json, as coordctl trace has written it")
    parser.add_argument("folder", help="where to; must not be there yet")
    options = parser.parse_args(arguments)
    try:
        entered = convert(options.trace, options.folder)
    except (InvalidArgumentError, ImportError, OSError) as error:
        print(f"coordd.otf2: {error}", file=sys.stderr)
        return 1
    print(f"{entered} slices in {os.path.join(options.folder, 'traces.otf2')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
