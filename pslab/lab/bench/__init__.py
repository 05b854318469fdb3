"""How fast pslab is, beside limits and peers measured in the same run."""
