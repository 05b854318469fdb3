"""How sparse and dense vectors are written as bytes, and read back."""
