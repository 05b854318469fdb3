"""The user's side: runs, records, figures, studies, the live view and the commands."""
