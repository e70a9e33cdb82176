"""How Sphinx builds the site; build.py collects the pages."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import lmrc

project = "lmrc"
author = "The lmrc developers"
copyright = author  # noqa: A001
version = release = lmrc.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4
smartquotes = False  # options begin with two hyphens

autodoc_default_options = {"members": True, "inherited-members": False}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"
napoleon_google_docstring = False
napoleon_use_rtype = False
add_module_names = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_math_renderer = "mathml"  # needs no script, and no network
html_theme = "furo"
html_title = "lmrc"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7db4f0", "color-brand-content": "#7db4f0"},
}
pygments_dark_style = "github-dark"


def _skip(app, what, name, obj, skip, options):  # scikit-learn adds these to every estimator
    return skip or name.endswith("_request") or name == "get_metadata_routing"


def _mathml(writer, node):
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def setup(app):
    """Extend Sphinx."""
    app.add_html_math_renderer("mathml", (_mathml, None), (_mathml, None))
    app.connect("autodoc-skip-member", _skip)
