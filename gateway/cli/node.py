"""``bfia-gateway token …``: who may use the operators' listener. Works on the database: a first one needs none."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.auth import Role, new_token, token_place
from gateway.cli.client import (
    DEFAULT_CONFIG,
    EXIT_BAD_INPUT,
    AsJson,
    CallFailed,
    Config,
    reporting,
    settings_of,
    show,
    table,
)
from gateway.cli.console import say
from gateway.cli.inputs import finite, who
from gateway.cli.paging import PAGE, After, Limit, of_all, print_more

commands = typer.Typer(help="Who may use the operators' listener, and in which role.", no_args_is_help=True)


def add(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands, name="token")


@commands.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit and in histories.")],
    role: Annotated[Role, typer.Option(help="What it is for.")],
    days: Annotated[float, typer.Option(min=0, callback=finite(), help="Days until it expires; 0: never.")] = 90,
    config: Config = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, once: only its hash is kept.

    Example: bfia-gateway token create ann --role admin --days 30
    """
    from gateway.store.access import SqlTokens

    with reporting(as_json), _Database(config) as store:
        now = datetime.now(UTC)
        if not name.strip() or len(name) > 255:
            raise CallFailed("the name must have 1 to 255 characters", EXIT_BAD_INPUT)
        text, token = new_token(name, role, now, now + timedelta(days=days) if days else None)
        SqlTokens(store.store).add(token)
        until = token.expires_at.isoformat() if token.expires_at else None
        store.audit("token create", None, {"id": token.id, "name": name, "role": str(role), "expires_at": until})
        if as_json:
            show({"id": token.id, "name": name, "role": role, "token": text})
        else:
            say(text)
            until = f"until {token.expires_at:%Y-%m-%d}" if token.expires_at else "without an end"
            say(f"{role} {name}, {until}; it is shown only now", err=True)


@commands.command("list")
def list_tokens(
    after: After = "", limit: Limit = PAGE, config: Config = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """List the tokens; their text is not kept.

    Example: bfia-gateway token list
    """
    from gateway.errors import Invalid
    from gateway.http.pagination import page_of
    from gateway.store.access import SqlTokens

    with reporting(as_json), _Database(config) as store:
        now = datetime.now(UTC)
        rows = []
        try:
            page = page_of(SqlTokens(store.store).list(), token_place, after, limit)
        except Invalid as error:
            raise CallFailed("; ".join(map(str, error.problems)), EXIT_BAD_INPUT, error.reason) from None
        for token in page.entries:
            state = "good"
            if token.revoked_at:
                state = "revoked"
            elif token.expires_at and token.expires_at <= now:
                state = "expired"
            until = f"{token.expires_at:%Y-%m-%d %H:%M}" if token.expires_at else "never"
            rows.append(
                [token.id, token.name, str(token.role), f"{token.created_at:%Y-%m-%d %H:%M}", until, state]
            )
        columns = ["id", "name", "role", "created", "expires", "state"]
        if as_json:
            lines = [dict(zip(columns, row, strict=True)) for row in rows]
            show({"tokens": lines, "total": page.total, "next": page.next})
            return
        table(of_all(page._asdict(), len(rows), "token"), columns, rows)
        print_more(page._asdict())


@commands.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Name (all its tokens) or id (that one).")],
    config: Config = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Revoke tokens; a running node refuses them within two seconds.

    Example: bfia-gateway token revoke ann
    """
    from gateway.store.access import SqlTokens

    with reporting(as_json), _Database(config) as store:
        count = SqlTokens(store.store).revoke(name, datetime.now(UTC))
        if count:
            store.audit("token revoke", {"token": name, "good": count}, {"token": name, "good": 0})
        if not count:
            raise CallFailed(f"no token that is still good has the name or id {name}")
        if as_json:
            show({"revoked": count})
        else:
            say(f"{count} revoked")


class _Database:
    """The node's database, opened beside the node that may be running on it."""

    def __init__(self, config: Path) -> None:
        from gateway.errors import Invalid
        from gateway.store.migrate import opened
        from gateway.store.store import Store

        url = settings_of(config).database.url
        if url.startswith("sqlite:///"):
            Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        try:
            self.store = Store(opened(url))
        except Invalid as error:
            raise CallFailed("; ".join(map(str, error.problems)), EXIT_BAD_INPUT, error.reason) from None

    def __enter__(self) -> "_Database":
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def audit(self, action: str, before: Any, after: Any) -> None:
        """Write down a change that went past the operators' listener."""
        from gateway.store.access import SqlAudit

        detail = {"before": before, "after": after}
        SqlAudit(self.store).add(datetime.now(UTC), f"{who()} (command line)", action, 200, None, detail)
