"""Django's settings, derived from the typed options. Nothing here is edited by operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from csp.constants import NONE, SELF

from umpteenth.core.config import PROJECT_ROOT, StorageOptions, get_options
from umpteenth.core.keyfiles import read_secret_key

OPTIONS = get_options()
BASE_DIR = PROJECT_ROOT
DATA_DIR = OPTIONS.data_dir

DEBUG = OPTIONS.app.debug
SECRET_KEY = read_secret_key(OPTIONS)

_APP = urlsplit(OPTIONS.app_url)
_BIND_HOST = OPTIONS.app.bind.rpartition(":")[0].strip("[]")
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
ALLOWED_HOSTS = sorted({_APP.hostname or "", *_LOOPBACK} - {""})
if OPTIONS.app.url is None and _BIND_HOST not in ("127.0.0.1", "::1", "localhost"):
    # Without app.url the operator has not said which names lead here.
    ALLOWED_HOSTS = ["*"]
CSRF_TRUSTED_ORIGINS = [OPTIONS.app_url]
SECURE = _APP.scheme == "https"

INSTALLED_APPS = [
    "umpteenth.core",
    "umpteenth.accounts",
    "secrets_vault",
    "servers",
    "jobs",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_htmx",
    "csp",
    "axes",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "umpteenth.core.middleware.ClientAddressMiddleware",
    "umpteenth.core.static.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "umpteenth.accounts.middleware.ApiMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "umpteenth.core.middleware.PageMiddleware",
    "umpteenth.accounts.middleware.TemporaryPasswordMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "umpteenth.urls"
ASGI_APPLICATION = "umpteenth.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "umpteenth.accounts.context.shell",
            ],
            "builtins": ["umpteenth.core.templatetags.ui"],
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    ["django.template.loaders.filesystem.Loader"],
                )
            ]
            if not DEBUG
            else ["django.template.loaders.filesystem.Loader"],
        },
    }
]


def _database(url: str | None, data_dir: Path) -> dict[str, Any]:
    if url is None or url.startswith("sqlite:///"):
        path = data_dir / "umpteenth.sqlite3" if url is None else Path(url[len("sqlite:///") :])
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": path,
            "OPTIONS": {
                "timeout": 20,  # seconds; busy_timeout
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    parts = urlsplit(url)
    # What follows the question mark goes to libpq: sslmode, or host for a socket's directory.
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", unquote(parts.hostname or "")),
        "PORT": query.pop("port", str(parts.port or "")),
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            **query,
            # Everybody takes a connection for a moment and waits for none with one in hand, so
            # that a few are enough. Of all processes together Postgres admits 100 by default.
            "pool": {
                "min_size": 0,
                "max_size": 8 + OPTIONS.runs.max_concurrent // 2,
                "timeout": 10,  # seconds to wait for a free one
                # It tries ever more rarely; given up, the next request begins anew.
                "reconnect_timeout": 5,
                "max_idle": 60,  # seconds until an unused one is closed
            },
        },
    }


_database_url = OPTIONS.database.url
DATABASES = {
    "default": _database(_database_url.get_secret_value() if _database_url else None, DATA_DIR)
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "accounts:sign_in"
LOGIN_REDIRECT_URL = "dashboard"
LOGOUT_REDIRECT_URL = "accounts:sign_in"

SESSION_COOKIE_AGE = 7 * 24 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = SECURE
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SECURE = SECURE
CSRF_FAILURE_VIEW = "umpteenth.accounts.views.csrf_failure"
if OPTIONS.app.trusted_proxies:
    # ClientAddressMiddleware drops the header where anybody else sets it.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# 20 attempts a minute from one address: umpteenth.accounts.limits.
AXES_HANDLER = "umpteenth.accounts.limits.AttemptsPerMinute"
AXES_CLIENT_IP_CALLABLE = "umpteenth.core.middleware.client_address"
AXES_LOCKOUT_CALLABLE = "umpteenth.accounts.views.locked_out"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_ENABLE_ADMIN = False
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "media-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Served from where they lie: nothing is collected.
STATIC_ROOT = None
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG


def _storage(options: StorageOptions, data_dir: Path) -> dict[str, Any]:
    """Where the files of runs lie; the modules are imported with the first file."""
    if options.backend == "directory":
        backend = "jobs.storage.directory.DirectoryStorage"
        return {"BACKEND": backend, "OPTIONS": {"location": data_dir / "files"}}
    if options.backend == "database":
        return {"BACKEND": "jobs.storage.database.DatabaseStorage"}
    s3 = options.s3
    bucket = {
        "bucket_name": s3.bucket,
        "location": s3.prefix,
        "endpoint_url": s3.endpoint,
        "region_name": s3.region,
        "access_key": s3.access_key,
        "secret_key": s3.secret_key.get_secret_value() if s3.secret_key else None,
        "addressing": s3.addressing,
    }
    return {
        "BACKEND": "jobs.storage.s3.BucketStorage",
        # What is not given is the library's to find.
        "OPTIONS": {name: value for name, value in bucket.items() if value},
    }


STORAGES = {
    "default": _storage(OPTIONS.storage, DATA_DIR),
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
USE_TZ = True
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 20_000

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "mask": {"()": "umpteenth.core.logs.MaskingFilter"},
        "brief": {"()": "umpteenth.core.logs.BriefFilter"},
    },
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": "plain",
            "filters": ["brief", "mask"],
        }
    },
    "root": {"handlers": ["console"], "level": OPTIONS.app.log_level},
    "loggers": {
        # They log whole URLs, query included, at INFO.
        "httpx2": {"level": "WARNING"},
        "httpcore2": {"level": "WARNING"},
        "axes": {"level": "WARNING"},
        # One line for each hint; what became of it is on the timeline.
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        # The embedded queue has no address that would say anything.
        "celery.worker.consumer.connection": {
            "level": OPTIONS.app.log_level if OPTIONS.redis.url else "WARNING"
        },
        "django.request": {"level": "ERROR"},
    },
}
