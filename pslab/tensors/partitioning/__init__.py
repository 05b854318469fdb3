"""The partition of rows among workers, the placement of keys at servers, and their traffic."""
