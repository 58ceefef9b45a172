"""A real OpenID provider, Django OAuth Toolkit, in its own process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application

CLIENT = "bfia-console"
SECRET = "a-secret-of-the-console"
PASSWORD = "password-of-everybody"  # of all users


@contextmanager
def provider(
    back: str,
    users: Mapping[str, list[str]],
) -> Iterator[str]:
    """Serve until the test is over; yield the issuer.

    ``back``: the URL to which browsers return. ``users``: groups by user name.
    """
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.services.openid",
        back,
        json.dumps(users),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            issuer = process.stdout.readline().strip()
            assert issuer, "the provider does not start"
            yield issuer
        finally:
            process.terminate()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


_LOGIN = (
    '<title>login</title><form method="post">{% csrf_token %}{{ form.as_p }}'
    "<button>log in</button></form>"
)


def _settings(folder: Path) -> dict[str, Any]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    templates = {
        "loaders": [("django.template.loaders.locmem.Loader", {"registration/login.html": _LOGIN})]
    }
    return {
        "SECRET_KEY": os.urandom(20).hex(),
        "ALLOWED_HOSTS": ["127.0.0.1"],
        "ROOT_URLCONF": "tests.services.openid_site",
        "LOGIN_URL": "/login",
        "USE_TZ": True,
        # browsers share cookies between the ports of a host
        "SESSION_COOKIE_NAME": "at-the-provider",
        "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db"}},
        "INSTALLED_APPS": [
            *(f"django.contrib.{app}" for app in ("auth", "contenttypes", "sessions")),
            "oauth2_provider",
        ],
        "MIDDLEWARE": [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        "MIGRATION_MODULES": dict.fromkeys(("auth", "contenttypes", "sessions", "oauth2_provider")),
        "TEMPLATES": [
            {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": templates}
        ],
        "OAUTH2_PROVIDER": {
            "OIDC_ENABLED": True,
            "OIDC_RSA_PRIVATE_KEY": key.private_bytes(
                Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
            ).decode(),
            "PKCE_REQUIRED": True,
            "SCOPES": {"openid": "who it is", "profile": "the name"},
            "OAUTH2_VALIDATOR_CLASS": "tests.services.openid_site.Claims",
            "ALLOWED_REDIRECT_URI_SCHEMES": ["http"],
        },
    }


def main(back: str, users: Mapping[str, list[str]]) -> None:
    """Serve until killed; print the issuer."""
    with tempfile.TemporaryDirectory() as folder:
        settings.configure(**_settings(Path(folder)))
        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)  # tables without a history: faster
        from tests.services import openid_site

        openid_site.fill(back, users)
        with make_server("127.0.0.1", 0, get_wsgi_application(), _Server, _Quiet) as server:
            print(f"http://127.0.0.1:{server.server_port}/o", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
