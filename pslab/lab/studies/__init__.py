"""What several notebooks share, and algorithms of studies that need tests."""
