"""How Sphinx builds the site; build.py collects the pages."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import lmrc
from lmrc.methods.declared import TrainingParameters

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

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "separated"
napoleon_google_docstring = False
napoleon_use_rtype = False
add_module_names = False
default_role = "literal"  # what docstrings have in backticks
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
    hidden = (
        "__init__",
        "__new__",
        "get_metadata_routing",
        "parameters",
    )  # docstrings have the parameters
    return skip or name.endswith("_request") or name in hidden


def _leave_out_common(app, what, name, obj, options, lines):  # they are on another page
    own_pages = ("LMRCClassifier", "LMRCPlusClassifier")
    declares = what == "class" and issubclass(obj, TrainingParameters)
    if not declares or obj.__name__ in own_pages:
        return
    common = {n for n, p in TrainingParameters.parameters.items() if obj.parameters.get(n) == p}
    kept, leaving_out = [], False
    for line in lines:
        if line and not line.startswith(" "):
            leaving_out = line.partition(" : ")[0] in common
        if not leaving_out:
            kept.append(line)
    text = "\n".join(kept)
    lines[:] = text.replace("Parameters\n----------\n\n", "").split("\n")


def _inline(writer, node):
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(writer, node):
    formula = tex2mathml(node.astext(), as_block=True)
    writer.body.append(f'<div class="formula">{formula}</div>')
    raise nodes.SkipNode


def setup(app):
    """Extend Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-docstring", _leave_out_common, priority=400)  # before napoleon
