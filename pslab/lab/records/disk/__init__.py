"""What lies on disk: folders that are complete or absent, runs under way, and what a batch reads meanwhile."""
