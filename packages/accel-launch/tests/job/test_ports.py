"""Which ports jobs of one machine get that run at once."""

from accel_launch.job.ports import PortReservation


def test_jobs_that_run_at_once_have_ports_of_their_own() -> None:
    """T18: scripts that open a group by themselves meet at the second port, which nobody holds by listening."""
    with PortReservation() as one, PortReservation() as other:
        ports = [port for held in (one, other) for port in (held.meeting.store_port, held.meeting.master_port)]
    assert len(set(ports)) == 4, ports
