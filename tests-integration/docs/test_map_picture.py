"""The picture of docs/guides/big-models.md is what the code draws."""

from pathlib import Path

import map_picture


def test_the_picture_is_what_the_code_draws(tmp_path: Path) -> None:
    map_picture.picture(tmp_path / "device-map.svg")
    drawn = (tmp_path / "device-map.svg").read_text()
    assert map_picture.PLACE.read_text() == drawn, "python tests-integration/tools/map_picture.py writes it anew"
