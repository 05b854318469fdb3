"""The policies, pure: one page per rule that reads like its paper."""
