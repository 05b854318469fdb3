"""What a person touches: runs, records, figures, studies, the live view and the commands."""
