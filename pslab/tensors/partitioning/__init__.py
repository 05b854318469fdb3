"""Which worker holds which rows, and which server which keys; and the traffic that follows from it."""
