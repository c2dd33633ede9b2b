"""Hooks of mkdocs: pages at the top of the repository, and the demo's report where it was made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: page of the site: file of the repository
PAGES = {"contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}
#: the report of `cabs run --pool demo`; the workflow that publishes the site makes it first
REPORT = ROOT / ".cabs" / "artifacts" / "reports" / "demo"
_MARK = "<!-- demo report -->"


def on_config(config: Any) -> Any:
    """Add pages that the navigation does not name to its second section, under their own titles."""
    named = str(config.nav)
    section = config.nav[1]["Use it"]
    for path in sorted((ROOT / "docs").glob("*.md")):
        if f"'{path.name}'" not in named:
            section.append(path.name)
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add what lies outside docs/."""
    for page, name in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted(REPORT.glob("*")) if (REPORT / "index.html").is_file() else []:
        if path.suffix in (".html", ".png"):
            files.append(File.generated(config, f"demo/{path.name}", abs_src_path=str(path)))
    return files


#: what the docstring reader makes of `scores, costs: text`: a name with a comma, and the rest as its type
_SEVERAL = re.compile(r',">(\w+),</span></code></b>\s*\(<code>(.*?)</code>\)', re.DOTALL)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Name the search, which the theme leaves without a name; print the names that share a line as names."""

    def names(match: re.Match[str]) -> str:
        rest = re.sub(r"<[^>]*>", "", match[2]).strip("()")
        return f'">{match[1]}</span></code></b>, <b><code>{rest}</code></b>'

    return _SEVERAL.sub(names, output).replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point links at where the pages are on the site."""
    if (REPORT / "index.html").is_file():
        markdown = markdown.replace(
            _MARK, "[The report of the demo](demo/index.html), as it was made with this site."
        )
    if page.file.src_uri in PAGES:
        markdown = re.sub(r"\]\(docs/([\w./#-]+)\)", r"](\1)", markdown)
    top = {name: page_name for page_name, name in PAGES.items()}
    for name, page_name in top.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}(#[\w-]*)?\)", rf"]({page_name}\1)", markdown)
    return markdown
