"""The record of a run: a folder with its metrics, tables, images, configuration and metadata.

Readers of records import from here.
"""

from accel_track.local.damage import tell_damage
from accel_track.local.documents import read_document, read_metadata
from accel_track.local.lines import entries
from accel_track.local.record import CONFIG, MEDIA, METADATA, METRICS
from accel_track.local.record_lock import is_locked
from accel_track.values import as_number, flatten

__all__ = [
    "CONFIG",
    "MEDIA",
    "METADATA",
    "METRICS",
    "as_number",
    "entries",
    "flatten",
    "is_locked",
    "read_document",
    "read_metadata",
    "tell_damage",
]
