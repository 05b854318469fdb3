"""How sparse and dense vectors become bytes."""
