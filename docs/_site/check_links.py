"""Follows every link inside the built site, with its anchor: `python docs/_site/check_links.py .nox/site`."""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The names in a page that links can lead to, and the links in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the names and the links of a tag."""
        for name, value in attrs:
            if value and (name == "id" or (name == "name" and tag == "a")):
                self.names.add(value)
            # a rel is for browsers; what the theme fills in by a script has no value here
            elif value and name in ("href", "src") and tag != "link":
                self.links.append(value)


@cache
def page_at(path: Path) -> Page:
    """The page in a file."""
    return Page(path.read_text(encoding="utf-8"))


def broken(site: Path) -> list[str]:
    """The links of all pages that lead nowhere, each with its page."""
    wrong = []
    for path in sorted(site.rglob("*.html")):
        if "_static" in path.parts:
            continue
        for link in sorted(set(page_at(path).links)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                wrong.append(f"{path.relative_to(site)}: {link}: there is no such file")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page_at(target).names:
                wrong.append(f"{path.relative_to(site)}: {link}: the page has no such anchor")
    return wrong


def main(arguments: list[str]) -> int:
    """Prints the links that lead nowhere, and counts them."""
    site = Path(arguments[0])
    wrong = broken(site)
    print("\n".join(wrong) or f"every link inside of {site} leads somewhere")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
