"""How Sphinx makes the site of docs/. tools/build-docs runs it; by itself it needs COORDD_DOXYGEN_XML, the folder of Doxygen's XML.

The pages are plain Markdown that GitHub shows as well. What the site needs beyond that is made here while a page is read: the
navigation, from the lists of docs/README.md, and the links that leave docs/, which the site cannot follow.
"""

import os
import re
import sys

SITE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(SITE))
sys.path[:0] = [SITE, os.path.join(ROOT, "tools")]

import markdown_links  # noqa: E402  (tools/markdown_links.py)

project = "coordd"
author = "the authors of coordd"
with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as _lists:
    release = re.search(r"project\(coordd\s+VERSION\s+([\d.]+)", _lists.read()).group(1)

extensions = ["myst_parser", "breathe", "python_api"]
root_doc = "README"
exclude_patterns = ["site"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_heading_slug_func = markdown_links.slug
highlight_language = "none"
nitpicky = False

breathe_projects = {"coordd": os.environ["COORDD_DOXYGEN_XML"]}
breathe_default_project = "coordd"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_show_include = False

python_api_root = os.path.join(ROOT, "client", "python")
python_api_modules = ["coordd.process_sets", "coordd.exceptions"]  # what other modules offer of these is described there

html_theme = "alabaster"
html_title = f"coordd {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_sidebars = {"**": ["about.html", "navigation.html", "searchbox.html"]}
html_theme_options = {"description": "coordination and collectives for distributed training", "page_width": "1200px",
                      "sidebar_width": "260px", "fixed_sidebar": True, "show_powered_by": False}


def navigation(text):
    """Sections of docs/README.md as (title, pages): the first link of each item of a list below a heading."""
    sections, item = [], re.compile(r"^- \[[^\]]+\]\((?P<page>[^)#:]+)\.md\)")
    for line in text.split("\n"):
        heading, page = markdown_links.HEADING.match(line), item.match(line)
        if heading:
            sections.append((heading.group(2), []))
        elif page and not page.group("page").startswith("..") and sections:
            sections[-1][1].append(page.group("page"))
    return [(title, pages) for title, pages in sections if pages]


def toctrees(text):
    for title, pages in navigation(text):
        yield "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""])


def without_links_out(docname, text):
    """The site has no page for what is outside of docs/: a link to it becomes its text with the path behind it."""
    plain, parts, end = markdown_links.without_code(text), [], 0
    for match in markdown_links.LINK.finditer(plain):
        link = match.group("link")
        place = os.path.normpath(os.path.join(os.path.dirname(docname), link.partition("#")[0]))
        if match.group("image") or markdown_links.is_outside(link) or link.startswith("#") or not place.startswith(".."):
            continue
        words, path = text[match.start("text"):match.end("text")], place[len("../"):]
        shown = f"`{path}`" if words.strip("`") == path else f"{words} (`{path}`)"
        parts += [text[end:match.start()], shown]
        end = match.end()
    return "".join([*parts, text[end:]])


def read(app, docname, source):
    text = source[0]
    if docname == root_doc:
        text = "\n".join([text, "", *toctrees(text)])
    source[0] = without_links_out(docname, text)


def setup(app):
    app.connect("source-read", read)
