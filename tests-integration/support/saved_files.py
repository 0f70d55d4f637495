"""What saves write: a model to save, the files of a folder, and the bytes that a device was asked for."""

from pathlib import Path

from accel_checkpoint import read_manifest, require_whole
from suite.recording_device import RecordingDevice
from suite.toy_models import Mlp


def model(seed: int = 0) -> Mlp:
    """Tensors of 768, 96, 480 and 20 bytes."""
    return Mlp(8, 24, 5, seed=seed)


def contents(folder: Path) -> dict[str, bytes | None]:
    """The bytes of each file by its path from the folder, and None for each folder in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def copied_bytes(gpu: RecordingDevice) -> int:
    """Bytes that went from the device to memory of the CPU."""
    return sum(int(call.split(": ")[1].split()[0]) for call in gpu.calls if call.startswith("copy out"))


def number_of(target: Path) -> int:
    """The number that the whole checkpoint there was saved with."""
    manifest = read_manifest(target)
    require_whole(target, manifest)
    number: int = manifest.about["number"]
    return number
