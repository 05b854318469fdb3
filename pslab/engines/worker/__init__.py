"""The worker: its driver, its tensors and gradients, and the phases that it logs. No engine's clock is read here."""
