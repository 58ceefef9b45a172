"""The site of the tests' OpenID provider; importable once Django is set up."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group, User
from django.contrib.auth.views import LoginView
from django.urls import include, path
from oauth2_provider.models import Application
from oauth2_provider.oauth2_validators import OAuth2Validator

from tests.services.openid import CLIENT, PASSWORD, SECRET

urlpatterns = [
    path("login", LoginView.as_view()),
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
]


class Claims(OAuth2Validator):
    """Adds name and groups to the standard claims."""

    oidc_claim_scope = None

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        """Return the name and groups of a request's user."""
        groups = request.user.groups.values_list("name", flat=True)
        return {"preferred_username": request.user.username, "groups": list(groups)}


def fill(back: str, users: Mapping[str, list[str]]) -> None:
    """Create the client and the users."""
    Application.objects.create(
        client_id=CLIENT,
        client_secret=SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=back,
        algorithm=Application.RS256_ALGORITHM,
        skip_authorization=True,
    )
    for name, groups in users.items():
        user = User.objects.create_user(name, password=PASSWORD)
        user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
