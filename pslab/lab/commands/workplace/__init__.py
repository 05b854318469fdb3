"""Where a person works: a folder with the notebooks and their data, a new notebook in it, JupyterLab on it."""
