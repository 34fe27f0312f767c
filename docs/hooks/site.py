"""What the site needs beyond MkDocs: equations as MathML, links that leave the documents, search without a network.

MathML is drawn by the browser itself, so that an equation needs no script.
"""

from __future__ import annotations

import html
import logging
import posixpath
import re
from typing import TYPE_CHECKING

from latex2mathml.converter import convert

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: In strict mode a warning here ends the build.
LOG = logging.getLogger("mkdocs.hooks.site")
#: GitHub's form of an equation of its own; the Markdown extension knows the dollar signs.
FENCE = re.compile(r"^```math\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.S)
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.S)
LOG_AND_SPACE = '<mi>log</mi><mspace width="0.17em"></mspace>'
#: A link to a file above docs/; on the site it is shown as the file's name, since the site does not hold it.
OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)]+)\)")
#: What the theme would fetch so that search works in pages opened from a folder; offline-search.js does the same.
REMOTE = "https://unpkg.com/iframe-worker/shim"
#: A script or a style sheet from elsewhere.
FETCHED = re.compile(r"""<(?:script|link rel="stylesheet")[^>]*(?:src|href)="(https?://[^"]+)""")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Equations in the extension's form; links that leave the documents as plain names."""
    folder = posixpath.dirname(page.file.src_uri)

    def inside(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[2].partition("#")[0]))
        return match[0] if target.startswith("docs/") else f"{match[1]} (`{target}`)"

    return OUTSIDE.sub(inside, FENCE.sub(r"$$\n\1$$", markdown))


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Every equation as MathML."""
    shown = BLOCK.sub(lambda found: _mathml(found, "block"), content)
    return INLINE.sub(lambda found: _mathml(found, "inline"), shown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The page without anything that a browser would fetch from elsewhere."""
    return _without_network(output, page.url, "../" * page.url.count("/"))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for the page that stands in for a missing one."""
    return _without_network(output_content, template_name, "/")


def _without_network(text: str, name: str, root: str) -> str:
    local = text.replace(REMOTE, f"{root}offline-search.js")
    if found := FETCHED.search(local):
        LOG.warning("%s would fetch %s; expected a site that needs no network", name, found[1])
    return local


def _mathml(found: re.Match[str], display: str) -> str:
    # A named function stands off from what follows it; the converter leaves that to the reader.
    return convert(html.unescape(found[1]).strip(), display=display).replace("<mi>log</mi>", LOG_AND_SPACE)
