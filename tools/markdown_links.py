"""Links in Markdown: where they lead, and whether there is something. tools/build-docs uses it; so may any other tool.

A relative link has to hit a file or a folder of the repository, and an anchor a heading of its page. Links to other sites are
not followed. A path in code, such as `server/job/blame`, has to be there too, with an ending or without; a test may be named by
its folder below tests/. One with NAME or a star in it stands for many, and so does a file x.

It needs nothing but Python's standard library.
"""

import glob
import os
import re
import subprocess
import urllib.parse

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
TARGET = re.compile(r"^\((?P<name>[\w.-]+)\)=\s*$")  # MyST's own anchors
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<link>[^()\s]+)(?:\s+\"[^\"]*\")?\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(?P<link>\S+)", re.MULTILINE)
TOPS = "bench|client|cmake|common|deploy|docs|proto|relay|server|tests|tools|worker"
PATH = re.compile(rf"(?<!`)`(?P<path>(?:{TOPS})/[\w./-]+)`(?!`)")
OTHER_SITE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def without_code(text):
    """`text` with fenced blocks and inline code replaced by spaces, line ends kept."""
    lines, fence = [], None
    for line in text.split("\n"):
        match = FENCE.match(line)
        if fence:
            closes = match and match.group(1)[0] == fence[0] and len(match.group(1)) >= len(fence)
            fence = None if closes else fence
            lines.append(" " * len(line))
        elif match:
            fence = match.group(1)
            lines.append(" " * len(line))
        else:
            lines.append(line)
    blank = "\n".join(lines)
    return re.sub(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", lambda match: re.sub(r"[^\n]", " ", match.group()), blank,
                  flags=re.DOTALL)


def slug(heading):
    """The anchor of a heading, as GitHub makes it."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def anchors(text):
    """All anchors of a page."""
    seen, found, fence = {}, set(), None
    for line in text.split("\n"):
        match = FENCE.match(line)
        if match and (fence is None or (match.group(1)[0] == fence[0] and len(match.group(1)) >= len(fence))):
            fence = None if fence else match.group(1)
            continue
        if fence:
            continue
        heading, target = HEADING.match(line), TARGET.match(line)
        if target:
            found.add(target.group("name"))
        if heading:
            name = slug(heading.group(2))
            found.add(name if name not in seen else f"{name}-{seen[name]}")
            seen[name] = seen.get(name, 0) + 1
    return found


def links(text):
    """(line, link) for every link and image of a page, those to other sites included."""
    plain = without_code(text)
    for pattern in (LINK, REFERENCE):
        for match in pattern.finditer(plain):
            yield plain.count("\n", 0, match.start("link")) + 1, match.group("link")


def is_outside(link):
    return OTHER_SITE.match(link) is not None


def markdown_files(root):
    """Paths of all Markdown files that git tracks or would, relative to root; all of them where there is no git."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z", "--", "*.md"],
                             capture_output=True, check=True).stdout.decode()
        paths = [path for path in out.split("\0") if path]
    except (OSError, subprocess.CalledProcessError):
        paths = [os.path.relpath(os.path.join(folder, name), root)
                 for folder, _, names in os.walk(root) for name in names if name.endswith(".md")]
    return sorted(path for path in set(paths) if os.path.isfile(os.path.join(root, path)))


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as page:
        return page.read()


def check_paths(root, paths=None):
    """One sentence for each path in code that is not there."""
    for path in markdown_files(root) if paths is None else paths:
        for number, line in enumerate(read(root, path).split("\n"), 1):
            for match in PATH.finditer(line):
                named = match.group("path").rstrip("/")
                tops = ("", "tests") if named.endswith("_test") else ("",)
                full = [os.path.join(root, top, named) for top in tops]
                stands_for_many = re.search(r"NAME|/x[._]", named)
                if stands_for_many or any(os.path.exists(one) or glob.glob(glob.escape(one) + ".*") for one in full):
                    continue
                yield f"{path}:{number}: found the path {match.group('path')}, expected one that is in the repository"


def check(root, paths=None):
    """One sentence for each link that leads nowhere."""
    known = {}
    for path in markdown_files(root) if paths is None else paths:
        text = read(root, path)
        for line, link in links(text):
            if is_outside(link):
                continue
            place, _, anchor = urllib.parse.unquote(link).partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), place)) if place else path
            if place.startswith("/") or target.startswith(".."):
                yield f"{path}:{line}: found the link {link}, which leaves the repository; expected a relative path inside of it"
            elif not os.path.exists(os.path.join(root, target)):
                yield f"{path}:{line}: found the link {link}, expected a file {target}"
            elif anchor and not target.endswith(".md"):
                yield f"{path}:{line}: found the link {link} with an anchor, expected a page of Markdown before it"
            elif anchor:
                if target not in known:
                    known[target] = anchors(read(root, target))
                if anchor not in known[target]:
                    yield f"{path}:{line}: found the link {link}, expected a heading with the anchor {anchor} in {target}"
