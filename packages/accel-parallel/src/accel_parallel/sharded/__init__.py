"""What sharded models need besides the sharding itself."""
