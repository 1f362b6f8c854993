"""The viewer's pages: plain modules for a browser, without a build. The API serves them at `/ui`.

They are data, so that API and trainer, which never import each other, can both have them.
"""
