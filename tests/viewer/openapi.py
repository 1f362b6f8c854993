"""`python tests/viewer/openapi.py FILE` writes the API's OpenAPI document, of which the viewer's types are made."""

import json
import sys
from pathlib import Path

from rolloutpool_api.app import create_app
from rolloutpool_api.settings import ApiSettings

# Nothing is asked of this Redis.
application = create_app(ApiSettings(redis_url="redis://127.0.0.1"))
Path(sys.argv[1]).write_text(json.dumps(application.openapi()), encoding="utf-8")
