"""Where a loader stands, and how it continues there."""
