"""The modules for users: runs, records, figures, studies, the live view and the commands."""
