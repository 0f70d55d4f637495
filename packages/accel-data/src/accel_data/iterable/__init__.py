"""Read streams, in shards or whole, and share them among ranks."""
