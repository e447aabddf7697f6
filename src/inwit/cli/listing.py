"""`inwit methods`, `envs` and `protocols`."""

from __future__ import annotations

from inwit.cli.common import Json, app, list_all


@app.command()
def methods(json_: Json = False) -> None:
    """List the methods that a recipe can name, and their settings."""
    from inwit.methods import known_methods, method_class

    found = {name: method_class(name) for name in sorted(known_methods())}
    list_all(found, {name: m.summary for name, m in found.items()}, json_)


@app.command()
def envs(json_: Json = False) -> None:
    """List the environments that a recipe can name, and their settings."""
    from inwit.envs import env_class, known_envs

    found = {name: env_class(name) for name in sorted(known_envs())}
    list_all(found, {name: (e.__doc__ or "").splitlines()[0] for name, e in found.items()}, json_)


@app.command()
def protocols(json_: Json = False) -> None:
    """List the ways in which questions can be asked, and their options."""
    from inwit.evaluation.protocols import PROTOCOLS

    found = {name: PROTOCOLS.find(name) for name in PROTOCOLS.known()}
    list_all(found, {name: p.summary for name, p in found.items()}, json_)
