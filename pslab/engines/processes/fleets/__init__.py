"""How a run's processes are started, what memory they have in common, and how they find each other."""
