"""The web process: `uvicorn umpteenth.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "umpteenth.settings")
application = get_asgi_application()
