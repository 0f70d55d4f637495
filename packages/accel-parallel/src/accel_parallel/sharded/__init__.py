"""Add to sharded models what torch's sharding leaves out."""
