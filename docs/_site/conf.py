"""How Sphinx makes the site from the pages: `nox -s docs`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

project = "accel"
copyright = "the authors of accel"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "inline_pictures",
    "links_to_the_tree",
    "messages",
    "stored_inventories",
]
exclude_patterns = ["_site", "examples/README.md"]

# the pages' headings are targets of links, as on GitHub
myst_heading_anchors = 3
default_role = "code"
nitpicky = True
# Types that other projects document, and those that a signature names and no page does, are words without a link.
nitpick_ignore_regex = [("py:.*", ".*")]

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_use_type_comments = False
napoleon_numpy_docstring = False
napoleon_custom_sections = [(name, "returns_style") for name in ("Shape", "Units", "Collective", "Source")]
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "accel"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = False
