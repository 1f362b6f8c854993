"""The static files that anybody may read: the page `/docs` and the viewer, by their paths."""

from rolloutpool_common.viewer.assets import viewer_files

DOCS_FILES = {
    "/docs": ("docs.html", "text/html"),
    "/docs/start.js": ("start.js", "text/javascript"),
    "/docs/swagger-ui-bundle.js": ("swagger_ui/swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": ("swagger_ui/swagger-ui.css", "text/css"),
}
"""By path: the file, and its type."""
DOCS_PATHS = frozenset(DOCS_FILES)
UI_FILES = viewer_files()
UI_PATHS = frozenset({"/ui", "/ui/", *(f"/ui/{name}" for name in UI_FILES)})
