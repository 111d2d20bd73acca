#!/usr/bin/env python3
"""Makes ELF programs and libraries that were linked on Debian 12 ask for the functions of glibc 2.27 and of g++ 7's libstdc++.

What they ask for that is newer is one of three:
- The function moved, or got another version: glibc 2.34 took pthread_create from libpthread into libc. The older version, which
  glibc keeps for ever, is asked for instead (MOVED).
- The function is new. libcoordd-older.so, made from tools/older/older.cc, has it (VERSION); nothing else in the process sees that.
- Neither: it stays, and is printed. What the file needs then is newer than is wanted.

How: a dynamic symbol that is not defined in a file names a version by its number, and a table says which version of which library
each number is. The table is written anew, behind the segment that patchelf adds to a file for the names of more libraries.

Usage: elf_older.py --ours=LIBRARY FILE...   changes the files in place, prints how many symbols it changed and what is left.
LIBRARY is libcoordd-older.so, or nothing. The files are x86-64's; patchelf has to be there.
"""

import struct
import subprocess
import sys

OLDER = "libcoordd-older.so"
VERSION = "COORDD_OLDER"
# The newest that may be asked for, of each family of versions: glibc of Ubuntu 18.04, which is older than RHEL 8's 2.28; of g++ 7's
# libraries, what PyPI takes of manylinux_2_28 and older.
NEWEST = {"GLIBC": (2, 27), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}

PTHREAD, DL, RT, M, C = "libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libc.so.6"
# Symbol: (library that has it in glibc 2.27, its version there). The same functions, as their manual pages and glibc's NEWS say: those
# of libm had to report errors to matherr() too, which nobody has set.
MOVED = {
    **{f"pthread_{name}": (PTHREAD, "GLIBC_2.2.5") for name in (
        "attr_setstacksize", "create", "detach", "getspecific", "join", "key_create", "key_delete", "kill", "mutex_trylock",
        "mutexattr_destroy", "mutexattr_init", "mutexattr_settype", "once", "rwlock_destroy", "rwlock_init", "rwlock_rdlock",
        "rwlock_trywrlock", "rwlock_unlock", "rwlock_wrlock", "setspecific", "sigmask", "spin_destroy", "spin_init", "spin_lock",
        "spin_trylock", "spin_unlock")},
    "pthread_condattr_setclock": (PTHREAD, "GLIBC_2.3.3"),
    "pthread_attr_setaffinity_np": (PTHREAD, "GLIBC_2.3.4"),
    "pthread_getaffinity_np": (PTHREAD, "GLIBC_2.3.4"),
    "pthread_setname_np": (PTHREAD, "GLIBC_2.12"),
    **{name: (DL, "GLIBC_2.2.5") for name in ("dladdr", "dlclose", "dlerror", "dlopen", "dlsym", "dlvsym")},
    "dlinfo": (DL, "GLIBC_2.3.3"),
    **{name: (RT, "GLIBC_2.2.5") for name in ("shm_open", "shm_unlink")},
    **{name: (RT, "GLIBC_2.3.3") for name in ("timer_create", "timer_delete", "timer_settime")},
    **{name: (M, "GLIBC_2.2.5") for name in ("exp", "log", "log2", "pow")},
    "__libc_start_main": (C, "GLIBC_2.2.5"),
}

DT_NULL, DT_NEEDED, DT_VERNEED, DT_VERNEEDNUM = 0, 1, 0x6FFFFFFE, 0x6FFFFFFF
PT_LOAD = 1
SHT_DYNAMIC, SHT_DYNSYM, SHT_VERSYM, SHT_VERNEED, SHT_VERDEF = 6, 11, 0x6FFFFFFF, 0x6FFFFFFE, 0x6FFFFFFD
SYMBOL_BYTES = 24  # of Elf64_Sym: name 4, info 1, other 1, section 2, value 8, size 8
ENTRY_BYTES = 16  # of an Elf64_Verneed (a library) and of an Elf64_Vernaux (one of its versions)
HIDDEN = 0x8000


class Unfit(Exception):
    """A file that cannot be changed, and why."""


def sysv_hash(name):
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def is_newer(version):
    family, _, numbers = version.partition("_")
    if family not in NEWEST or not numbers.replace(".", "").isdigit():
        return False
    return tuple(map(int, numbers.split("."))) > NEWEST[family]


class Elf:
    """The dynamic part of a 64-bit little-endian file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.image = bytearray(file.read())
        if self.image[:6] != b"\x7fELF\x02\x01":
            raise Unfit("not a 64-bit little-endian ELF file")
        start, = struct.unpack_from("<Q", self.image, 0x28)
        entry_bytes, count = struct.unpack_from("<HH", self.image, 0x3A)
        self.sections = {}  # kind: (where its header is, where it is, its bytes)
        self.headers = []
        for index in range(count):
            base = start + index * entry_bytes
            kind, = struct.unpack_from("<I", self.image, base + 4)
            _, offset, size, link = struct.unpack_from("<QQQI", self.image, base + 0x10)
            self.headers.append((base, offset, size))
            self.sections.setdefault(kind, (base, offset, size, link))
        if SHT_DYNAMIC not in self.sections or SHT_DYNSYM not in self.sections:
            raise Unfit("nothing in it is linked dynamically, or it was stripped of its section headers")
        self.strings = self.headers[self.sections[SHT_DYNSYM][3]]

    def text(self, offset):
        """The string at `offset` of the table of dynamic strings."""
        begin = self.strings[1] + offset
        return self.image[begin:self.image.index(0, begin)].decode()

    def text_offset(self, text):
        """Where in the table of dynamic strings `text` is."""
        _, begin, size = self.strings
        found = self.image.find(b"\0" + text.encode() + b"\0", begin, begin + size)
        if found < 0:
            raise Unfit(f"patchelf has not put {text} into it")
        return found + 1 - begin

    def needed(self):
        """Names of the libraries that it is linked with."""
        return [self.text(value) for _, tag, value in self.dynamic() if tag == DT_NEEDED]

    def dynamic(self):
        """Entries of the dynamic section: (where, tag, value)."""
        _, offset, size, _ = self.sections[SHT_DYNAMIC]
        for where in range(offset, offset + size, 16):
            tag, value = struct.unpack_from("<QQ", self.image, where)
            yield where, tag, value
            if tag == DT_NULL:
                return

    def symbols(self):
        """(where its number of a version is, that number, name, whether it is defined here by code or data of its own)."""
        _, offset, size, _ = self.sections[SHT_DYNSYM]
        if SHT_VERSYM not in self.sections:
            return
        versions = self.sections[SHT_VERSYM][1]
        for index in range(1, size // SYMBOL_BYTES):
            name, _, _, section = struct.unpack_from("<IBBH", self.image, offset + index * SYMBOL_BYTES)
            where = versions + 2 * index
            number, = struct.unpack_from("<H", self.image, where)
            yield where, number, self.text(name), section != 0

    def versions(self):
        """{number: (library, name)} of the versions that are asked for."""
        found = {}
        if SHT_VERNEED not in self.sections:
            return found
        where = self.sections[SHT_VERNEED][1]
        while True:
            _, count, library, first, following = struct.unpack_from("<HHIII", self.image, where)
            entry = where + first
            for _ in range(count):
                _, _, number, name, next_entry = struct.unpack_from("<IHHII", self.image, entry)
                found[number] = (self.text(library), self.text(name))
                entry += next_entry
            if following == 0:
                return found
            where += following

    def defined_versions(self):
        """The numbers of the versions that the file itself defines."""
        if SHT_VERDEF not in self.sections:
            return set()
        where, found = self.sections[SHT_VERDEF][1], set()
        while True:
            _, _, number, _, _, _, following = struct.unpack_from("<HHHHIII", self.image, where)
            found.add(number)
            if following == 0:
                return found
            where += following


def offered(path):
    """Names of what a library defines with the version VERSION."""
    elf = Elf(path)
    numbers = elf.defined_versions() - {1}  # 1 is the library itself
    return {name for _, number, name, defined in elf.symbols() if defined and number & ~HIDDEN in numbers}


def plan(elf, ours):
    """What each symbol that is too new is to be: {where its number is: (library, version)}; and those that nothing can be done about."""
    versions = elf.versions()
    changes, left = {}, set()
    for where, number, name, _ in elf.symbols():
        library, version = versions.get(number & ~HIDDEN, ("", ""))
        if not is_newer(version):
            continue
        if name in ours:
            changes[where] = (OLDER, VERSION)
        elif name in MOVED:
            changes[where] = MOVED[name]
        else:
            left.add(f"{name}@{version}")
    return changes, left


def wanted_versions(elf, changes):
    """{library: {version: number}} as it is to be; gives the symbols of `changes` their numbers."""
    versions, wanted = elf.versions(), {}
    for where, number, _, _ in elf.symbols():
        if where not in changes and number & ~HIDDEN in versions:
            library, version = versions[number & ~HIDDEN]
            wanted.setdefault(library, {})[version] = number & ~HIDDEN
    number = max([*versions, *elf.defined_versions(), 1]) + 1
    for where, (library, version) in changes.items():
        of_library = wanted.setdefault(library, {})
        if version not in of_library:
            of_library[version] = number
            number += 1
        struct.pack_into("<H", elf.image, where, of_library[version])
    return wanted


def table_of(elf, wanted):
    """The bytes of a table of versions."""
    table = b""
    for index, (library, versions) in enumerate(wanted.items()):
        following = 0 if index + 1 == len(wanted) else ENTRY_BYTES * (1 + len(versions))
        table += struct.pack("<HHIII", 1, len(versions), elf.text_offset(library), ENTRY_BYTES, following)
        for place, (version, number) in enumerate(versions.items()):
            more = 0 if place + 1 == len(versions) else ENTRY_BYTES
            table += struct.pack("<IHHII", sysv_hash(version), 0, number, elf.text_offset(version), more)
    return table


def append_to_last_segment(elf, data):
    """(address, offset in the file) of `data` at the end of the file, up to which the last segment reaches then."""
    start, = struct.unpack_from("<Q", elf.image, 0x20)
    entry_bytes, count = struct.unpack_from("<HH", elf.image, 0x36)
    loads = []
    for base in range(start, start + entry_bytes * count, entry_bytes):
        kind, _, offset, address, _, in_file, in_memory = struct.unpack_from("<IIQQQQQ", elf.image, base)
        if kind == PT_LOAD:
            loads.append((address, offset, in_file, in_memory, base))
    address, offset, in_file, in_memory, base = max(loads)
    if in_file != in_memory:
        raise Unfit("its last segment ends in memory that is not in the file: patchelf has added none")
    elf.image += bytes(-(len(elf.image) - offset) % 8)
    place = len(elf.image) - offset  # in the segment, which is to reach to the end of the file
    elf.image += data
    struct.pack_into("<QQ", elf.image, base + 0x20, place + len(data), place + len(data))
    return address + place, offset + place


def rewrite(elf, changes):
    """Carries out what plan() says, where the names that it takes are already among the file's strings."""
    wanted = wanted_versions(elf, changes)
    table = table_of(elf, wanted)
    address, offset = append_to_last_segment(elf, table)
    header = elf.sections[SHT_VERNEED][0]
    struct.pack_into("<QQQ", elf.image, header + 0x10, address, offset, len(table))
    struct.pack_into("<I", elf.image, header + 0x2C, len(wanted))  # sh_info: how many libraries it is of
    for where, tag, _ in list(elf.dynamic()):
        if tag == DT_VERNEED:
            struct.pack_into("<Q", elf.image, where + 8, address)
        elif tag == DT_VERNEEDNUM:
            struct.pack_into("<Q", elf.image, where + 8, len(wanted))


def make_older(path, ours):
    """Changes the file; returns how many symbols it has changed, and those that nothing can be done about."""
    elf = Elf(path)
    changes, left = plan(elf, ours)
    if changes:
        libraries = {library for library, _ in changes.values()} - set(elf.needed())
        # A name that is needed and then not needed stays among the strings.
        versions = [version for _, version in set(changes.values())]
        subprocess.run(["patchelf", *(part for name in [*sorted(libraries), *versions] for part in ("--add-needed", name)), path], check=True)
        subprocess.run(["patchelf", *(part for name in versions for part in ("--remove-needed", name)), path], check=True)
        elf = Elf(path)
        changes, _ = plan(elf, ours)
        rewrite(elf, changes)
        with open(path, "r+b") as file:
            file.write(elf.image)
    return len(changes), left


def main(arguments):
    if len(arguments) < 2 or not arguments[0].startswith("--ours=") or any(name.startswith("-") for name in arguments[1:]):
        print(__doc__, file=sys.stderr)
        return 2
    total, left = 0, set()
    ours = arguments[0].partition("=")[2]
    try:
        names = offered(ours) if ours else set()
        for path in arguments[1:]:
            changed, stays = make_older(path, names if path != ours else set())
            total += changed
            left |= stays
    except (Unfit, OSError, subprocess.CalledProcessError) as why:
        print(f"elf_older: {path}: {why}", file=sys.stderr)
        return 2
    print(f"elf_older: {total} symbols of {len(arguments) - 1} files ask for older versions now"
          + (f"; nothing older is known of {', '.join(sorted(left))}" if left else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
