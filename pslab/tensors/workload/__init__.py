"""What is trained: models, data, their keys, and what each layer costs."""
