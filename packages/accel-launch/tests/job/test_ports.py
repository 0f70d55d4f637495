"""Which ports jobs of one machine get that run at once."""

from accel_launch.job.ports import reserved_ports


def test_jobs_that_run_at_once_have_ports_of_their_own() -> None:
    """T18: scripts that open a group by themselves meet at the second port, which nobody holds by listening."""
    with reserved_ports() as (one, _), reserved_ports() as (other, _):
        ports = [port for held in (one, other) for port in (held.store_port, held.master_port)]
    assert len(set(ports)) == 4, ports
