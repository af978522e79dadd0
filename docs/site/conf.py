"""Sphinx configuration of the documentation site: `make docs`. Sources are the Markdown files that GitHub shows, too.

The source directory is the root of the repository, so that links between documents resolve as they are written.
"""

import inspect
import re

project = "gavelpy"
root_doc = "docs/index"
html_title = "gavelpy"
html_theme = "furo"
include_patterns = ["docs/**", "*.md", "benchmarks/RESULTS.md", "workloads/README.md"]
exclude_patterns = [".*", "out", "docs/notebooks", "**/__pycache__"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_gallery.gen_gallery"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure", "config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # array types make signatures unreadable; shapes and units are in the text
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
autodoc_inherit_docstrings = False
default_role = "code"

sphinx_gallery_conf = {
    "examples_dirs": "docs/notebooks",
    "gallery_dirs": "docs/tutorials",
    "filename_pattern": r"\.py$",  # every notebook is executed; an error fails the build
    "abort_on_example_error": True,
    "image_scrapers": (),
    "reset_modules": (),
    "capture_repr": ("_repr_html_", "__repr__"),
    "show_memory": False,
    "min_reported_time": 10_000,
    "write_computation_times": False,
    "remove_config_comments": True,
}

_INDENTED = re.compile(r"^(?: {4,}|\t)\S")


def as_restructured_text(lines: list[str]) -> list[str]:
    """Docstring lines as reStructuredText: formulas and tables stay as written, prose has no markup but code."""
    out: list[str] = []
    for block in re.split(r"\n{2,}", inspect.cleandoc("\n".join(lines)).strip("\n")):
        rows = block.split("\n")
        if block.lstrip().startswith(">>>"):
            out += [*rows, ""]
        elif len(rows) > 1 and any(re.match(r" {2,}\S|\S.*\S {3,}\S|[-*] ", row) for row in rows[1:]):
            out += ["::", "", *(f"    {row}" for row in rows), ""]
        else:
            text = re.sub(r"(?<!`)`([^`]+)`(?!`)", "\0\\1\0", block)
            text = re.sub(r"([*|_\\])", r"\\\1", text)
            text = re.sub("\0([^\0]+)\0", lambda code: f"``{code[1].replace(chr(92), '')}``", text)
            out += [*text.split("\n"), ""]
    return out


def _on_docstring(app, what, name, obj, options, lines):
    lines[:] = as_restructured_text(lines)


def setup(app):
    app.connect("autodoc-process-docstring", _on_docstring)
