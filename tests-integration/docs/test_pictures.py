"""The pictures of the pages are what the packages do: `nox -s pictures` draws them anew."""

from pathlib import Path

import inline_pictures
import pytest
from accel_testing import MakePool
from pictures import device_maps, divided_data, dying_rank, windows
from pictures.__main__ import FOLDER, PICTURES

AGAIN = "nox -s pictures draws it anew"


def on_file(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text(encoding="utf-8")


def test_each_picture_is_shown_on_a_page() -> None:
    pages = "".join(path.read_text() for path in FOLDER.parent.rglob("*.md"))
    assert [path.name for path in FOLDER.glob("*.svg") if f"pictures/{path.name})" not in pages] == []
    assert [name for name in PICTURES if not (FOLDER / f"{name}.svg").exists()] == []


def test_data_are_drawn_as_the_loaders_serve_them() -> None:
    assert on_file("data-order") == divided_data.shuffled_order(), AGAIN
    assert on_file("data-endings") == divided_data.endings(), AGAIN


def test_windows_are_drawn_as_the_optimizer_steps(world: MakePool) -> None:
    (made,) = world(1, join=False).run(windows.all_steps)
    assert on_file("accumulation-windows") == windows.windows(made), AGAIN


def test_layers_are_drawn_where_the_map_puts_them() -> None:
    assert on_file("layers-on-disk") == device_maps.device_map(), AGAIN


@pytest.mark.timeout(300)
def test_the_death_of_a_rank_is_drawn_as_it_goes(forking_python: str) -> None:
    seen = dying_rank.death(forking_python)
    assert seen.code == 0
    assert on_file("dying-rank") == dying_rank.timeline(seen), AGAIN


@pytest.mark.parametrize(
    "path", [FOLDER / f"{name}.svg" for name in (*PICTURES, "store-requests")], ids=lambda path: path.stem
)
def test_a_picture_takes_the_colours_of_its_page(path: Path) -> None:
    picture = inline_pictures.themed(path.read_text(encoding="utf-8"), 'a "curve" of <x>')
    assert picture.startswith('<svg class="picture" role="img" aria-label="a &quot;curve&quot; of &lt;x&gt;"')
    for fixed in ("#000000", "#ffffff", 'fill="white"', "<style", "<metadata", "\n\n"):
        assert fixed not in picture
    assert picture.count("<svg") == 1


def test_a_picture_without_a_size_is_refused() -> None:
    with pytest.raises(ValueError, match="no root with width and height"):
        inline_pictures.themed('<svg viewBox="0 0 1 1"></svg>', "nothing")
