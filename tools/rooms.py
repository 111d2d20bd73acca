"""The rooms of the source tree, and which room may include which; tools/tidy checks them.

A room is a folder of common/, server/, worker/ or client/ whose CMakeLists.txt defines a library or a program of ours. That
file says which rooms it may include: those whose libraries stand behind LIBS. So the linker and this rule keep the same arrows.
"""

import ast
import os
import re

TOPS = ("common", "server", "worker", "relay", "client")
COMMAND = re.compile(r"\b(coordd_library|coordd_program|add_library|target_link_libraries)\s*\(\s*([\w-]+)([^)]*)\)")


class Room:
    """A folder, the names of its libraries, and the names of libraries that these are linked with."""

    def __init__(self, folder):
        self.folder = folder
        self.names = set()
        self.links = {}  # name of a library: number of the line in CMakeLists.txt that names it first
        self.linked_only = set()  # names on a line with "# linked: REASON"


def rooms_of(texts):
    """Rooms by folder; `texts`: those of all CMakeLists.txt by their path."""
    rooms = {}
    for path, text in texts.items():
        folder = os.path.dirname(path)
        if path.split("/")[0] not in TOPS:
            continue
        code = re.sub(r"#[^\n]*", lambda match: " " * len(match.group()), text)
        reasons = {number for number, line in enumerate(text.split("\n"), 1) if "# linked: " in line}
        for match in COMMAND.finditer(code):
            command, name, rest = match.groups()
            if command == "add_library" and not rest.split()[:1] == ["INTERFACE"]:
                continue
            room = rooms.setdefault(folder, Room(folder))
            if command != "target_link_libraries":
                room.names.add(name)
            for word in re.finditer(r"[\w:${}./-]+", rest):
                line = code.count("\n", 0, match.start(3) + word.start()) + 1
                room.links.setdefault(word.group(), line)
                if line in reasons:
                    room.linked_only.add(word.group())
    return {folder: room for folder, room in rooms.items() if room.names}


def room_of(path, rooms):
    """The folder of the innermost room that holds the file, or None."""
    folder = os.path.dirname(path)
    while folder and folder not in rooms:
        folder = os.path.dirname(folder)
    return folder or None


def circles(arrows):
    """Circles of a graph {node: set of nodes}, each as a list that begins and ends with one node."""
    state, found, stack = {}, [], []

    def visit(node):
        state[node] = "open"
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if state.get(other) == "open":
                found.append(stack[stack.index(other):] + [other])
            elif other not in state:
                visit(other)
        stack.pop()
        state[node] = "done"

    for node in sorted(arrows):
        if node not in state:
            visit(node)
    return found


def check_rooms(files, makes):
    """Yields (path, line, what was found, what is expected). `files`: paths of C++ files with the code of their lines;
    `makes`: the texts of all CMakeLists.txt by path."""
    rooms = rooms_of(makes)
    owner = {name: folder for folder, room in rooms.items() for name in room.names}
    allowed = {folder: {owner[name] for name in room.links if name in owner} for folder, room in rooms.items()}
    # A folder with nothing but folders offers all of them under one name.
    for folder, room in rooms.items():
        if any(other.startswith(folder + "/") for other in rooms) and folder.count("/") == 0:
            room.names_all = allowed[folder]
    whole = {folder for folder, room in rooms.items() if hasattr(room, "names_all")}
    for folder in allowed:
        for other in list(allowed[folder] & whole):
            allowed[folder] |= rooms[other].names_all
    used = {folder: set() for folder in rooms}
    for path, code in files:
        here = room_of(path, rooms)
        if here is None or path.split("/")[0] not in TOPS:
            continue
        for number, line in enumerate(code, 1):
            match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            there = room_of(match.group(1), rooms) if match else None
            if there is None or there == here:
                continue
            used[here].add(there)
            if there not in allowed[here]:
                yield (path, number, f"an include of {there}/ in {here}/",
                       f"only rooms whose libraries {here}/CMakeLists.txt names: {', '.join(sorted(allowed[here])) or 'none'}")
    for folder, room in sorted(rooms.items()):
        if folder in whole:
            continue
        for name, line in sorted(room.links.items()):
            there = owner.get(name)
            if there and there != folder and there not in whole and folder.split("/")[0] == there.split("/")[0] \
                    and there not in used[folder] and name not in room.linked_only:
                yield (f"{folder}/CMakeLists.txt", line, f"{name}, of which {folder}/ includes nothing",
                       "only libraries that are included, or '# linked: REASON' on the line")
    inner = {folder: {other for other in allowed[folder] if other != folder and other not in whole}
             for folder in rooms if folder not in whole}
    for circle in circles(inner):
        yield (f"{circle[0]}/CMakeLists.txt", 1, "a circle of rooms, " + " -> ".join(circle), "arrows that point one way")


def check_readmes(paths, makes):
    """Each room of common/, server/, worker/ and client/coordrun/ has a README.md."""
    for folder in sorted(rooms_of(makes)):
        if folder.startswith(("common", "server", "worker", "client/coordrun")) and f"{folder}/README.md" not in paths:
            yield (f"{folder}/CMakeLists.txt", 1, f"{folder}/ without a README.md",
                   "a paragraph: what the room is, what it may include, where to begin")


def modules_of(texts, root):
    """Names of modules by path; `texts`: Python files by path."""
    names = {}
    for path in texts:
        if path.startswith(root) and path.endswith(".py"):
            name = path[len(root):-len(".py")].replace("/", ".")
            names[path] = name[:-len(".__init__")] if name.endswith(".__init__") else name
    return names


def check_python(texts, root="client/python/"):
    """Yields circles of modules below `root`, imports within functions included. `texts`: Python files by path."""
    names = modules_of(texts, root)
    known, arrows = set(names.values()), {}
    for path, name in names.items():
        wanted = set()
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                wanted |= (inner & known) or {node.module}
        arrows[name] = (wanted & known) - {name}
    paths = {name: path for path, name in names.items()}
    for circle in circles(arrows):
        yield (paths[circle[0]], 1, "a circle of modules, " + " -> ".join(circle), "imports that point one way")
