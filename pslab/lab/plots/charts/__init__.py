"""Charts of summaries and other tables: points, bars, heat maps, and the tables themselves."""
