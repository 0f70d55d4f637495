"""What a recording device was asked to copy."""

from accel_testing.recording_device import RecordingDevice


def copied_bytes(gpu: RecordingDevice) -> int:
    """Bytes that went from the device to memory of the CPU."""
    return sum(int(call.split(": ")[1].split()[0]) for call in gpu.calls if call.startswith("copy out"))
