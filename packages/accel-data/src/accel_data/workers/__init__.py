"""What loader workers know, and how they end."""
