"""Links of the built site that lead nowhere are found."""

from pathlib import Path

import check_links


def test_links_without_a_file_or_an_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="folder/page.html#there">1</a><a href="https://example.org/x">2</a>'
        '<a href="#top">3</a><a href="#gone">4</a><a href="none.html">5</a><img src="none.svg"/>'
        '<a href="folder/page.html#gone">6</a>'
    )
    (tmp_path / "folder" / "page.html").write_text('<p id="there"></p><a href="../index.html">up</a>')
    assert check_links.broken(tmp_path) == [
        "index.html: #gone: the page has no such anchor",
        "index.html: folder/page.html#gone: the page has no such anchor",
        "index.html: none.html: there is no such file",
        "index.html: none.svg: there is no such file",
    ]
